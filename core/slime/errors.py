"""The one error a user sees, and the search for the name they meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SlimeError(Exception):
    """An error a user can cause or must act on.

    Printed by `slime.__main__` as one line: what went wrong, where, and what to do next. Programming errors
    stay assertions and ordinary exceptions.

    Args:
        what: the fact, without a final full stop ("no reward named 'mth'").
        where: file, key, plugin, rank or engine it concerns; empty if `what` says it.
        todo: the next thing the user should do; never empty.
    """

    def __init__(self, what: str, *, where: str = "", todo: str) -> None:
        assert what, "a SlimeError says what happened"
        assert todo, "a SlimeError says what to do"
        self.what, self.where, self.todo = what, where, todo
        super().__init__(" ".join(f"{f'{where}: ' if where else ''}{what}. {todo}".split()))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with its three parts, so that it survives the way from a worker process to the driver."""
        return _rebuild, (type(self), self.what, self.where, self.todo)


class NoAnswer(SlimeError):
    """A process did not answer in time. It may hang: whoever catches this has the stacks taken."""


def _rebuild(cls: type[SlimeError], what: str, where: str, todo: str) -> SlimeError:
    return cls(what, where=where, todo=todo)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to a mistyped one, or None if nothing is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence for `SlimeError.todo`: the nearest known name, or the whole list when nothing is near."""
    options = sorted(known)
    if match := nearest(name, options):
        return f"Did you mean '{match}'?"
    return f"Choose one of: {', '.join(options)}." if options else "Nothing of this kind is installed."
