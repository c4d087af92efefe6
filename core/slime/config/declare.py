"""How a key of the config is declared: beside its default, all that is known of it, as metadata of its field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import Field, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bound:
    """A number must be at least `least` (above it, if `strict`) and at most `most`, or the value of `besides`, which
    says what that means. Upper ends are far above what anybody runs: `slime plan` counts to no mistyped number."""

    least: float
    most: float
    strict: bool = False
    besides: tuple[float, str] | None = None

    def holds(self, value: float) -> bool:
        if self.besides and value == self.besides[0]:
            return True
        return self.least <= value <= self.most and not (self.strict and value == self.least)

    def __str__(self) -> str:
        other = f"{self.besides[0]} ({self.besides[1]}) or " if self.besides else ""
        begin = "above" if self.strict else "at least"
        return f"{other}{begin} {_written(self.least)} and at most {_written(self.most)}"


def _written(end: float) -> str:
    return f"{end:,}" if isinstance(end, int) else f"{end:g}"


MAX_DEVICES, MAX_LAYERS = 16_384, 10_000
STEPS, PERIOD, TOKENS = Bound(0, 10**8), Bound(1, 10**8), Bound(1, 10**8)
SECONDS, MIB = Bound(1, 10**7), Bound(1, 10**7)
RATE, SHARE = Bound(0, 1, strict=True), Bound(0, 1)
DEVICES, BATCH, SAMPLES, ROWS = Bound(1, MAX_DEVICES), Bound(1, 10**6), Bound(1, 10**4), Bound(1, 10**9)
TOP_K = Bound(1, 10**7, besides=(-1, "all tokens"))


@dataclass(frozen=True)
class Declared:
    """What `key` was told."""

    bound: Bound | None = None
    may_change: bool | str = False
    known_as: str = ""


def key(
    default: Any = NO_DEFAULT,
    bound: Bound | None = None,
    *,
    make: Callable[[], Any] | None = None,
    may_change: bool | str = False,
    known_as: str = "",
) -> Any:
    """A field of a section.

    Args:
        make: makes the default, where that is a dictionary or a section.
        may_change: whether a resumed run may have another value, because it says how long, where and how fast the run
            goes, or what it reports. Other keys decide what the checkpoint's weights, optimizer state and prompt
            position mean. Of a dictionary, patterns of the names that may, separated by blanks.
        known_as: names in older versions and in other programs, separated by blanks: Megatron-LM's command line, verl
            (without `actor_rollout_ref.`), TRL and THUDM/slime. `docs/coming-from.md` has the last three.
    """
    metadata = {"key": Declared(bound, may_change, known_as)}
    return field(default_factory=make, metadata=metadata) if make else field(default=default, metadata=metadata)


def declared(item: Field[Any]) -> Declared:
    """What `key` was told of a field; nothing of one that is made otherwise."""
    found: Declared = item.metadata.get("key", Declared())
    return found
