"""What differs between a step as it was recorded and as it was replayed, in lines for people."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from slime.types import Group, Sample

NOT_COMPARED = ("seconds/", "memory/")
"""Metrics that no two runs have in common."""
MAX_SHOWN = 5


class Pair(NamedTuple):
    """A metric as it was recorded and as it was replayed."""

    name: str
    before: float
    now: float

    @property
    def relative(self) -> float:
        """The difference as a share of the larger one; 0 for the same number, NaN too; infinite for NaN and another."""
        if self.before == self.now or (math.isnan(self.before) and math.isnan(self.now)):
            return 0.0
        share = abs(self.now - self.before) / max(abs(self.before), abs(self.now))
        return math.inf if math.isnan(share) else share


def pairs(recorded: Mapping[str, float], replayed: Mapping[str, float]) -> list[Pair]:
    """The metrics that both have, in the order of the replayed ones."""
    shared = (name for name in replayed if name in recorded and not name.startswith(NOT_COMPARED))
    return [Pair(name, float(recorded[name]), float(replayed[name])) for name in shared]


def of_metrics(step: int, found: Sequence[Pair], *, whole: bool = True) -> Iterator[str]:
    """A table, if `whole`, and a line with the largest difference."""
    if whole:
        yield f"{'':32}{'recorded':>16}{'replayed':>16}{'difference':>12}"
        for pair in found:
            differs = f"{pair.now - pair.before:>12.1e}" if pair.relative else f"{'-':>12}"
            yield f"{pair.name:32}{pair.before:>16.8g}{pair.now:>16.8g}{differs}"
    if not found:
        yield f"step {step}: no metrics of it are recorded"
        return
    most = max(found, key=lambda pair: pair.relative)
    differs = f"largest difference {most.relative:.2%} of {most.name} ({most.now - most.before:.1e})"
    told = differs if most.relative else "the same to the bit"
    yield f"step {step}: {len(found)} metrics, {told}"


def of_groups(step: int, recorded: Sequence[Group], made: Sequence[Group]) -> Iterator[str]:
    """How many samples are the same, and where the first others part."""
    before, now = ([sample for group in groups for sample in group.samples] for groups in (recorded, made))
    both = [*zip(before, now, strict=True)]
    parted = {(a.prompt.id, a.index): where for a, b in both if (where := _parts(a, b)) is not None}
    others = [(a, b) for a, b in both if a.reward is not None and a.verdict != b.verdict]
    alike = [(a, b) for a, b in both if _parts(a, b) is None]
    gaps = [
        abs(x - y)
        for a, b in alike
        for mine, own in zip(a.segments, b.segments, strict=True)
        for x, y in zip(mine.logprobs, own.logprobs, strict=True)
    ]
    yield f"step {step}, generated again by weights {step - 1}: {len(both)} samples of {len(recorded)} prompts"
    yield f"  {'the same tokens':32}{len(alike)} of {len(both)}"
    yield f"  {'the same verdict':32}{len(both) - len(others)} of {len(both)}"
    if gaps:
        yield f"  {'largest log-prob difference':32}{max(gaps):.2g} nats, where tokens are the same"
    for (prompt, number), where in [*parted.items()][:MAX_SHOWN]:
        yield f"  prompt {prompt}, sample {number}: other tokens from {where} on"


def _tokens(sample: Sample) -> list[int]:
    return [token for segment in sample.segments for token in (*segment.context, *segment.tokens)]


def _parts(before: Sample, now: Sample) -> int | None:
    """Number of the first token that differs, over all segments; None if none does."""
    mine, own = _tokens(before), _tokens(now)
    same = next((at for at, (x, y) in enumerate(zip(mine, own, strict=False)) if x != y), min(len(mine), len(own)))
    return None if len(mine) == len(own) == same else same
