"""The one error a user sees, and the search for the name they meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial

from slime.printable import printable

EXIT_ERROR, EXIT_STOPPED = 2, 75
"""Exit codes of a process that ends by a `SlimeError`, and by `Stopped`: "try again" of BSD's sysexits.h."""
MAX_CHOICES = 300
"""Characters of a list of names in an error."""


class SlimeError(Exception):
    """An error a user can cause or must act on, printed by `slime.command` as one line. Programming errors stay
    assertions and ordinary exceptions.

    Args:
        what: the fact, without a final full stop ("no reward named 'mth'").
        where: file, key, plugin, rank or engine it concerns; empty if `what` says it.
        todo: the next thing the user should do; never empty.

    Attributes:
        code: the exit code of a process that ends by it.
    """

    code = EXIT_ERROR

    def __init__(self, what: str, *, where: str = "", todo: str) -> None:
        assert what, "a SlimeError says what happened"
        assert todo, "a SlimeError says what to do"
        self.what, self.where, self.todo = what, where, todo
        super().__init__(printable(" ".join(f"{f'{where}: ' if where else ''}{what}. {todo}".split())))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with its three parts, for the way from a worker process to the driver."""
        return partial(type(self), where=self.where, todo=self.todo), (self.what,)

    def under(self, key: str) -> SlimeError:
        """This error with the config key that it comes from."""
        return type(self)(self.what, where=", ".join(filter(None, (key, self.where))), todo=self.todo)

    def document(self) -> dict[str, str]:
        """The three parts, for a program."""
        return {"what": self.what, "where": self.where, "todo": self.todo}


class NoAnswer(SlimeError):
    """A process did not answer in time. It may hang, so its stacks are to be taken."""


class Consequence(SlimeError):
    """The failure of another process, which gives the reason: that one is to be shown."""


class Death(SlimeError):
    """A process of the run has ended, and is named."""


class Hang(SlimeError):
    """A process of the run gave no answer for too long, and is named; all stacks are taken."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a mistyped one was meant to be: with three quarters of its letters (`difflib`), and not with
    another number alone, as `x-4b` for `x-8b`; or None."""
    import difflib  # needed for mistakes only

    others = [other for other in known if not _other_number(name, other)]
    spellings = dict.fromkeys((name, name.lower()))
    close = [match for each in spellings for match in difflib.get_close_matches(each, others, 1, 0.75)]
    return close[0] if close else None


def _other_number(name: str, other: str) -> bool:
    letters, digits = ([re.sub(pattern, "", text) for text in (name, other)] for pattern in (r"\d", r"\D"))
    return letters[0] == letters[1] and all(digits) and digits[0] != digits[1]


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """A sentence for `SlimeError.todo`: the nearest known name, or the whole list when nothing is near, each name with
    `prefix` before it."""
    options = sorted(known)
    begun = [option for option in options if option.startswith(f"{name}-")]
    if match := nearest(name, options) or (begun[0] if len(begun) == 1 else None):
        return f"Did you mean '{prefix}{match}'?"
    choices = ", ".join(f"{prefix}{option}" for option in options)
    if len(choices) > MAX_CHOICES:
        import difflib

        close = difflib.get_close_matches(name, options, 3, 0)
        most_alike = ", ".join(f"{prefix}{option}" for option in close)
        return f"Nearest of {len(options)} are {most_alike}; 'slime --help' lists them all."
    return f"Choose one of: {choices}." if options else "Nothing of this kind is installed."


class Stopped(SlimeError):
    """A run was asked to end before its last step, and has: the same command goes on."""

    code = EXIT_STOPPED
