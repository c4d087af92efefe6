"""Passes without gradient over what a step trains on, before its first optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from torch import Tensor

from slime.objective import Objective, Source
from slime_megatron.train.local_batch import LocalMicroBatch
from slime_megatron.train.megatron import Model
from slime_megatron.train.model.policy import most_probable
from slime_megatron.train.step import score

ScoredColumns = dict[str, list[list[Tensor]]]
"""By column and optimizer step, [t] or [t, width] of each micro-batch; of none on pipeline stages but the last."""


def score_columns(
    objective: Objective,
    sources: Sequence[Source],
    model: Model,
    local: Sequence[list[LocalMicroBatch]],
    *,
    weights_of: Callable[[Source], AbstractContextManager[None]],
    replays: bool,
) -> ScoredColumns:
    """The columns of an objective that come from `sources`, a pass for each.

    Args:
        weights_of: inside, the model has the weights whose log-probs a source stands for.
        replays: the model's own pass replays what engines recorded.
    """
    found: ScoredColumns = {}
    for source in sources:
        # The others are other models, which choose for themselves what engines recorded of this one's choices.
        own = source is Source.policy and replays
        columns = [column for column in objective.needs if column.source is source]
        [width] = {column.width for column in columns}
        with weights_of(source), most_probable(model.modules, width):
            scored = [score(model, micro_batches, replays=own) for micro_batches in local]
        for column in columns:
            parts = [[scores[0 if width is None or column.ids else 1] for scores in each] for each in scored]
            found[column.name] = [[x.int() if column.ids else x for x in each] for each in parts]
    return found
