"""Into how many micro-batches a step is packed, and who waits: foretold by the packer that a run uses. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import numpy as np

from slime.algo.stages import run_stages
from slime.config.schema import SlimeConfig
from slime.engines.limits import longest_of
from slime.layout import Grid
from slime.train.bins import Shape, share_out
from slime.types import TrainSample


class Packs(NamedTuple):
    """Micro-batches of an optimizer step, in the mean of those that were packed.

    Attributes:
        a_rank: number of them, of a data-parallel rank.
        fill: tokens, without padding, as a share of what they hold.
        over_ranks: work of the busiest data-parallel rank over the mean.
        over_rounds: the same where ranks wait for each other at every micro-batch.
        largest: work of the largest micro-batch over the mean one.
    """

    a_rank: float
    fill: float
    over_ranks: float
    over_rounds: float
    largest: float

    def idle(self, stages: int, chunks: int) -> float:
        """Share of a pipeline stage's time without work: `stages` - 1 turns as long as the largest micro-batch, or of
        that the part of one chunk, where every stage has several (Narayanan et al., arXiv 2104.04473)."""
        turns = (stages - 1) * self.largest / chunks
        return turns / (self.a_rank + turns)


def lengths_of(longest: int, count: int) -> list[list[int]]:
    """Tokens of `count` sequences, drawn evenly between 2 and `longest`, the same every time; and of as many whose
    lengths mirror these, so that the mean of both steps is that of all."""
    draw = Random(0).random
    first = [2 + int((longest - 1) * draw()) for _ in range(count)]
    return [first, [2 + longest - length for length in first]]


def packs_of(steps: Sequence[Sequence[int]], grid: Grid, chunks: int, cap: int, attention: float) -> Packs:
    """Of whole sequences of these lengths.

    Args:
        chunks: of the model in a pipeline stage.
        cap: tokens of a micro-batch, which no sequence is longer than.
        attention: `slime.plan.flops.attention_length`.
    """
    shape = Shape(grid.dp, grid.pp if chunks > 1 else 1, grid.packing_align, cap, False, attention)
    row, found = np.zeros(max(map(max, steps)), np.int64), []
    for lengths in steps:
        samples = [TrainSample(row[:length], row[: length - 1]) for length in lengths]
        by_rank = share_out(samples, range(len(samples)), shape)
        weights = shape.sizes(samples, [[i] for i in range(len(samples))]).work
        work = np.asarray([[weights[[i for (i,) in units]].sum() for units in of_rank] for of_rank in by_rank])
        busy, rounds = work.sum(axis=1), work.max(axis=0)
        uneven = (busy.max() / busy.mean(), rounds.sum() / busy.mean(), rounds.max() / work.mean())
        found.append((len(rounds), sum(lengths) / (work.size * cap), *uneven))
    return Packs(*np.mean(found, axis=0).round(4).tolist())


def foretold(cfg: SlimeConfig, grid: Grid, chunks: int, attention: float) -> Packs:
    """Of the run's last stage. A pair of answers counts as one sequence."""
    cap, count = cfg.train.max_tokens_per_micro_batch, cfg.sft.batch_size
    longest = cap // grid.packing_align * grid.packing_align
    if run_stages(cfg).reinforces:
        count = cfg.rollout.prompts_per_step * cfg.rollout.samples_per_prompt // cfg.train.steps_per_rollout
        longest = longest_of(cfg.rollout, cfg.rollout.sampling)
    return packs_of(lengths_of(longest, count), grid, chunks, cap, attention)
