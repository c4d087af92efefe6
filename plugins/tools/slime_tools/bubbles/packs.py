"""What the trainer's own packer makes of a step, and how long ranks wait that compute it. No torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from slime.layout import Grid, divisors
from slime.train.bins import Shape, share_out
from slime.types import TrainSample
from slime_tools.bubbles.lengths import Drawn, Lengths, num_together

MOST, MOST_STEPS = 512, 8
"""Sequences that a plan packs, some 8 ms, and optimizer steps of them. Those of more than one take four times as long.
"""


class Bubbles(NamedTuple):
    """Of a step that was packed.

    Attributes:
        micro_batches: of a data-parallel rank.
        full: tokens, without padding, as a share of what the micro-batches hold; a shared prompt counts with each of
            its responses.
        ranks: share of the time of a step's passes that a rank waits for other data-parallel ones, in the mean.
        pipeline: share of it that a pipeline stage has nothing to do, in the mean.
    """

    micro_batches: float
    full: float
    ranks: float
    pipeline: float


def packed_work(drawn: Sequence[Drawn], shape: Shape) -> np.ndarray:
    """Work of every micro-batch, [data-parallel ranks, micro-batches], as `Shape.work` counts it."""
    longest = max(one.prompt + one.response for one in drawn)
    rows = [np.full(longest, number, np.int8) for number in range(2)]  # neighbours have other prompts
    samples = [
        TrainSample(
            rows[unit % 2][: prompt + response], rows[0][:response], attempt=unit if shape.whole_attempts else None
        )
        for prompt, response, unit in drawn
    ]
    micro_batches = [units for of_rank in share_out(samples, range(len(samples)), shape) for units in of_rank]
    work = shape.sizes(samples, [unit for units in micro_batches for unit in units]).work
    places = np.repeat(np.arange(len(micro_batches)), [len(units) for units in micro_batches])
    return np.bincount(places, work, len(micro_batches)).reshape(shape.num_dp, -1)


def waiting(work: np.ndarray, together: int, turns: float, times: float = 1.0) -> tuple[float, float]:
    """Shares of a step's time that ranks wait for each other, and that stages of a pipeline have nothing to do; in the
    mean of all ranks.

    Args:
        work: [data-parallel ranks, micro-batches].
        together: neighbours among these that wait for each other at every micro-batch.
        turns: of a pipeline stage without work, each as long as the largest micro-batch.
        times: that a step has as many micro-batches as `work` has.
    """
    rounds = work.reshape(-1, together, work.shape[1]).max(axis=1)
    busy, idle = times * rounds.sum(axis=1), turns * rounds.max(axis=1)
    ready = busy + idle
    whole = ready.max()
    for_rounds, for_the_slowest = busy.mean() - times * work.sum(axis=1).mean(), (whole - ready).mean()
    return float((for_rounds + for_the_slowest) / whole), float(idle.mean() / whole)


def foretold(lengths: Lengths, grid: Grid, chunks: int, shape: Shape) -> Bubbles:
    """The mean of several steps, if they are small. Of a large one as many ranks are packed as have `MOST` sequences
    together; if one rank has more, what these make is repeated.

    A pipeline idles as many turns as it has further stages, or of that the part of one chunk, where every stage has
    several (Narayanan et al., arXiv 2104.04473).

    Args:
        chunks: of the model in a pipeline stage.
        shape: of the whole step.
    """
    most = MOST // 4 if shape.share_below or shape.whole_attempts else MOST
    ranks = max(each for each in divisors(grid.dp) if each == 1 or each * lengths.count <= most * grid.dp)
    count = -(-lengths.count * ranks // grid.dp)
    some = dataclasses.replace(lengths, count=min(count, most))
    found, times = [], count / some.count
    for drawn in some.steps(min(most // some.count, MOST_STEPS)):
        work = packed_work(drawn, dataclasses.replace(shape, num_dp=ranks))
        full = sum(one.prompt + one.response for one in drawn) / (work.size * shape.max_tokens)
        shares = waiting(work, math.gcd(num_together(grid), ranks), (grid.pp - 1) / chunks, times)
        found.append((times * work.shape[1], full, *shares))
    return Bubbles(*(float(mean) for mean in np.mean(found, axis=0)))
