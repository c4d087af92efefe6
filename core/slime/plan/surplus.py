"""How old the tokens are that a step trains on, of a run that over-samples: some steps, played with even lengths."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass

from slime.config.choices import Surplus
from slime.config.rollout import RolloutConfig

MOST_GROUPS, MOST_SAMPLES = 32, 8
"""A larger step is played in proportion."""
STEPS, FIRST = 16, 4
"""How many are played, and how many of these come before the mean."""


@dataclass
class _Sample:
    """`length` and `done` in shares of the longest response; `start`: when its step has room for it."""

    length: float
    done: float = 0.0
    start: float = 0.0

    @property
    def end(self) -> float:
        return self.start + self.length - self.done


def stale_share(rollout: RolloutConfig, in_flight: int) -> float:
    """The share of trained tokens that older weights sampled, between 0 and 1: in the mean of many steps, if lengths
    are spread evenly up to the limit, and each of `in_flight` requests is as fast as the others."""
    if rollout.max_staleness or not rollout.continues:
        return 0.0
    draw, carried = random.Random(0), list[list[_Sample]]()
    needed, num = min(rollout.prompts_per_step, MOST_GROUPS), min(rollout.samples_per_prompt, MOST_SAMPLES)
    begun = math.ceil(needed * rollout.over_sampling)
    scale = needed * num / (rollout.prompts_per_step * rollout.samples_per_prompt)
    old = trained = 0.0
    for step in range(STEPS):
        fresh = [[_Sample(draw.random()) for _ in range(num)] for _ in range(begun - len(carried))]
        groups = carried + fresh
        _start([sample for group in groups for sample in group], max(1, round(in_flight * scale)))
        turns = groups if rollout.fixed_prompts else sorted(groups, key=_end)
        taken, carried = turns[:needed], turns[needed:]
        if step >= FIRST:
            old += sum(sample.done for group in taken for sample in group)
            trained += sum(sample.length for group in taken for sample in group)
        stop = max(map(_end, taken))
        for sample in (sample for group in carried for sample in group):
            sample.done += min(max(stop - sample.start, 0.0), sample.length - sample.done)
        if rollout.surplus is Surplus["finished"]:
            carried = [group for group in carried if all(sample.done >= sample.length for sample in group)]
    return old / trained


def _end(group: list[_Sample]) -> float:
    return max(sample.end for sample in group)


def _start(samples: list[_Sample], room: int) -> None:
    free = [0.0] * room
    for sample in samples:
        sample.start = free[0]
        heapq.heapreplace(free, sample.end)
