"""Lengths of the sequences of an optimizer step, and who waits for whom in it, by the config. No numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from slime.algo.stages import Stage
from slime.config.schema import RolloutConfig
from slime.engines.limits import longest_of
from slime.layout import Grid


class Drawn(NamedTuple):
    """Tokens of a sequence, and the number of its unit: the samples of a prompt, or the answers of a pair."""

    prompt: int
    response: int
    unit: int


@dataclass(frozen=True)
class Lengths:
    """Tokens of prompts and of responses, each spread evenly between 1 and the most.

    Attributes:
        count: sequences of an optimizer step.
        a_unit: of these that are side by side and have one prompt.
        most: of prompt and response together; what is longer is cut to it.
        are_pairs: whether a unit stays together.
    """

    count: int
    a_unit: int
    most_prompt: int
    most_response: int
    most: int
    are_pairs: bool = False

    def steps(self, number: int) -> list[list[Drawn]]:
        """The same ones every time. Every other one has a long sequence for each short one of that before it, so that
        the mean of few is near that of many."""
        random, found = Random(0), list[list[Drawn]]()
        for _ in range(0, number, 2):
            prompts = [random.random() for _ in range(-(-self.count // self.a_unit))]
            responses = [random.random() for _ in range(self.count)]
            found.append(self._step(prompts, responses))
            found.append(self._step([1 - share for share in prompts], [1 - share for share in responses]))
        return found[:number]

    def _step(self, prompts: Sequence[float], responses: Sequence[float]) -> list[Drawn]:
        found = []
        for number, share in enumerate(responses):
            unit = number // self.a_unit
            prompt = min(math.ceil(prompts[unit] * self.most_prompt) or 1, self.most - 1)
            found.append(Drawn(prompt, min(math.ceil(share * self.most_response) or 1, self.most - prompt), unit))
        return found


def lengths_of(stage: Stage, rollout: RolloutConfig, num_rows: int, max_tokens: int, grid: Grid) -> Lengths | None:
    """Of a stage. A row is as long as fits a micro-batch, an answer of a pair half of that; None where no sequence
    fits.

    Args:
        num_rows: demonstrations or pairs of an optimizer step, if these are what it trains on.
        max_tokens: of a micro-batch.
    """
    answers = 2 if stage.trains_on_pairs else 1
    most = max_tokens // answers // grid.packing_align * grid.packing_align
    if most < 2:
        return None
    if not stage.reinforces:
        return Lengths(num_rows * answers, answers, 1, most - 1, most, stage.trains_on_pairs)
    count = rollout.prompts_per_step * rollout.samples_per_prompt // stage.optimizer_steps
    most = min(most, longest_of(rollout, rollout.sampling))
    limits = rollout.max_prompt_tokens, rollout.sampling.max_response_tokens
    return Lengths(count, rollout.samples_per_prompt, *limits, most)


def num_together(grid: Grid) -> int:
    """Data-parallel ranks that wait for each other at every micro-batch, because they share experts."""
    dense = grid.tp * grid.cp
    return math.lcm(dense, grid.etp * grid.ep) // dense
