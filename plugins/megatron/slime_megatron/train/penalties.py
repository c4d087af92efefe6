"""What an objective takes from rewards before advantages are made of them, on the ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from slime.algo.stages import PenalisesRewards, Stage
from slime.errors import SlimeError
from slime.estimator import PENALTIES
from slime.types import MicroBatch
from slime_megatron.train.local_batch import LocalMicroBatch


def with_penalties(
    stage: Stage, local: list[list[LocalMicroBatch]], scored: Mapping[str, Sequence[Sequence[Tensor]]]
) -> list[list[LocalMicroBatch]]:
    """The micro-batches with the column `PENALTIES`, if the stage takes anything from rewards. It is 0 on pipeline
    stages other than the last, for which passes have `scored` nothing."""
    if not (names := stage.penalised_by):
        return local
    objective = stage.objective
    assert isinstance(objective, PenalisesRewards), "the stage has asked it"

    def penalised(micro: LocalMicroBatch, batch: int, number: int) -> LocalMicroBatch:
        masked, penalties = micro.loss_mask == 0, micro.loss_mask.new_zeros(len(micro.loss_mask))
        given = {name: scored[name][batch] for name in names if name in scored}
        if all(given.values()):
            columns = {name: given[name][number] if name in given else micro.columns[name] for name in names}
            penalties = objective.penalties({name: x.masked_fill(masked, 0.0) for name, x in columns.items()})
        return replace(micro, columns={**micro.columns, PENALTIES: penalties})

    return [
        [penalised(micro, batch, number) for number, micro in enumerate(of_batch)]
        for batch, of_batch in enumerate(local)
    ]


def sums_of_penalties(
    whole: Sequence[Sequence[MicroBatch]], local: Sequence[Sequence[LocalMicroBatch]]
) -> dict[int, float]:
    """By number of a sample, the sum in float64 of `PENALTIES` over the tokens of it that this rank holds. Raises
    SlimeError: one is not finite."""
    found: dict[int, float] = {}
    for packs, own_packs in zip(whole, local, strict=True):
        for micro, own in zip(packs, own_packs, strict=True):
            penalties = own.columns[PENALTIES].double().cpu()
            sums = torch.segment_reduce(penalties, "sum", lengths=own.sequence_lengths, initial=0)
            found |= dict(zip(micro.sample_ids, sums.tolist(), strict=bool(micro.sample_ids)))
    for number, penalty in found.items():
        if not math.isfinite(penalty):
            what, todo = f"sample {number} of the step: {penalty:g}", "See train/logprob_diff_max of the steps before."
            raise SlimeError(f"what is taken from rewards is not finite, in {what}", where="log-probs", todo=todo)
    return found
