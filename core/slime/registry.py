"""Contributions of one kind, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from slime.errors import SlimeError, did_you_mean
from slime.extras import how_to_get
from slime.hookspecs import Factory

T = TypeVar("T")


@dataclass(frozen=True)
class Contribution:
    """One thing that can be chosen by name, and the distribution it came from."""

    kind: str
    name: str
    factory: Factory
    distribution: str
    version: str


class Registry(Generic[T]):
    """The contributions of one kind, by name."""

    def __init__(self, kind: str, contributions: Iterable[Contribution]) -> None:
        self.kind = kind
        self._contributions = {item.name: item for item in contributions if item.kind == kind}

    def __contains__(self, name: str) -> bool:
        return name in self._contributions

    def __iter__(self) -> Iterator[Contribution]:
        return iter(self._contributions.values())

    def names(self) -> list[str]:
        return sorted(self._contributions)

    def get(self, name: str) -> Contribution:
        """The contribution of that name; SlimeError with the nearest one if there is none."""
        if name not in self._contributions:
            known = f"{did_you_mean(name, self.names())} 'slime plugins' lists what is installed."
            todo = how_to_get(f"{self.kind}/{name}") or known
            raise SlimeError(f"no {self.kind} named '{name}' is installed", todo=todo)
        return self._contributions[name]

    def create(self, name: str, **options: Any) -> T:
        """Call the factory of that name with the config's options."""
        return cast(T, self.get(name).factory(**options))

    def only(self) -> T | None:
        """The contribution of a kind of which a run takes one; None: none is installed."""
        return next((self.create(name) for name in self._contributions), None)
