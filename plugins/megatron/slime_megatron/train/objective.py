"""Between an objective and Megatron-core's schedules: its columns are put together, its loss is called and checked.

Shape letter: t tokens of this rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from slime.algo.stages import HasStepSums
from slime.errors import SlimeError
from slime.models.traits import ExtraLoss
from slime.objective import Column, LossInputs, LossTerms, Metrics, Objective, Source
from slime_megatron.train.local_batch import LocalMicroBatch
from slime_megatron.train.model.packed.sequences import PackedSequences
from slime_megatron.train.sequence_sums import sum_by_sequence

LossFunction = Callable[[Tensor, int], LossTerms]
"""From scores and the micro-batch's number to what it adds."""
Others = Callable[[int], Tensor | None]
"""From the micro-batch's number to the tokens [k, t] beside its labels that are scored, too."""
_WITH_THE_SAMPLES = (Source.rollout, Source.data, Source.critic)
"""Whose columns the micro-batches have; a critic's were put there before (`slime_megatron.train.critic`)."""
NUM_SCORES = 2
"""Rows of the model's scores that every objective has: log-probs and entropies. Those of other tokens come behind."""


class StepLoss:
    """An objective's loss in one optimizer step. Called with a micro-batch's scores and number.

    Args:
        scored: by name of a column and micro-batch, what the passes before gave; none but on the last pipeline stage.
        is_first: the weights are still those before the first optimizer step, so that the model's own log-probs are
            those of `Source.policy`, if no pass was made for them.
    """

    def __init__(
        self,
        objective: Objective,
        micro_batches: Sequence[LocalMicroBatch],
        scored: Mapping[str, Sequence[Tensor]],
        *,
        is_first: bool,
    ) -> None:
        self._objective, self._micro_batches, self._scored = objective, micro_batches, scored
        self._is_first = is_first
        self._columns = [column for column in objective.needs if self._comes(column)]
        self._ids = next((column for column in self._columns if column.ids), None)
        self.metrics: Metrics = objective.metrics([column.name for column in self._columns])
        self._step_sums = self._summed(objective) if isinstance(objective, HasStepSums) else {}

    def _comes(self, column: Column) -> bool:
        if column.source in _WITH_THE_SAMPLES:
            comes = column.name in self._micro_batches[0].columns
        else:
            comes = column.name in self._scored or (column.source is Source.policy and self._is_first)
        assert comes or column.optional, f"the samples have no column '{column.name}', and nobody scored it"
        return comes

    def others(self, number: int) -> Tensor | None:
        """[width, t] the tokens beside its labels whose log-probs the loss reads; None: there are none, or not on this
        pipeline stage."""
        column = self._ids
        if column is None or (column.name in self._scored and not self._scored[column.name]):
            return None
        masked = self._micro_batches[number].loss_mask == 0
        return self._given(column, number, masked).t()

    def _summed(self, objective: HasStepSums) -> dict[str, Tensor]:
        """The objective's sums over the step. Collective over the ranks with this part of the model, of which those of
        the last pipeline stage know the columns."""
        if not parallel_state.is_pipeline_last_stage():
            return {}
        known = [
            column for column in self._columns if column.source in _WITH_THE_SAMPLES or column.name in self._scored
        ]
        first = objective.step_sums(self._inputs(0, known))
        if not (names := sorted(first)):
            return {}
        others = (objective.step_sums(self._inputs(number, known)) for number in range(1, len(self._micro_batches)))
        sums = [first, *others]
        total = torch.stack([torch.stack([each[name].double() for each in sums]).sum() for name in names])
        dist.all_reduce(total, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
        return dict(zip(names, total, strict=True))

    def _inputs(self, number: int, columns: Sequence[Column], scores: Tensor | None = None) -> LossInputs:
        micro = self._micro_batches[number]
        masked = micro.loss_mask == 0
        found = {column.name: self._column(column, number, scores, masked) for column in columns}
        sums = partial(sum_by_sequence, lengths=micro.sequence_lengths)
        inputs = LossInputs(micro.loss_mask, micro.loss_weights, found, sums)
        if scores is not None and self._ids is not None:
            rows = scores[NUM_SCORES : NUM_SCORES + found[self._ids.name].size(1)]
            inputs = replace(inputs, logprobs_of={self._ids.name: rows.masked_fill(masked, 0.0).t().contiguous()})
        if micro.attempt_lengths is not None:
            inputs = replace(inputs, sum_by_attempt=partial(sum_by_sequence, lengths=micro.attempt_lengths))
        return inputs

    def __call__(self, scores: Tensor, number: int) -> LossTerms:
        own = scores[:NUM_SCORES].masked_fill(self._micro_batches[number].loss_mask == 0, 0.0)
        inputs = replace(self._inputs(number, self._columns, scores), step_sums=self._step_sums)
        terms = self._objective.loss(own, inputs)
        _require_declared(self._objective, terms, self.metrics)
        return terms

    def _column(self, column: Column, number: int, scores: Tensor | None, masked: Tensor) -> Tensor:
        if column.source is Source.policy and column.name not in self._scored:
            assert scores is not None, "what the model computes is known with its scores"
            return scores[0].detach().masked_fill(masked, 0.0)
        return self._given(column, number, masked)

    def _given(self, column: Column, number: int, masked: Tensor) -> Tensor:
        if column.source in _WITH_THE_SAMPLES:
            values = self._micro_batches[number].columns[column.name]
        else:
            values = self._scored[column.name][number]
            values = values.masked_fill(masked if column.width is None else masked[:, None], 0)
        return values.long() if column.ids else values  # held for a whole step, ids are int32


def _require_declared(objective: Objective, terms: LossTerms, metrics: Metrics) -> None:
    for kind in ("means", "token_sums", "maxima"):
        came, declared = set(getattr(terms, kind)), set(getattr(metrics, kind))
        if came != declared:
            raise SlimeError(
                f"loss gave {kind} {sorted(came)}, and metrics() says {sorted(declared)}",
                where=f"objective {type(objective).__name__}",
                todo="Correct one of them: every rank must know the names beforehand.",
            )


def with_extra_losses(
    loss: LossFunction, extra_losses: Sequence[tuple[ExtraLoss, float]], packed: Sequence[PackedSequences]
) -> LossFunction:
    """`loss`, and the extra ones with their weights, each of a row of scores behind the objective's and a mean under
    its own name; `loss` among the means stays the objective's."""

    def both(scores: Tensor, number: int) -> LossTerms:
        terms = loss(scores, number)
        for row, (extra, scale) in zip(scores[len(scores) - len(extra_losses) :], extra_losses, strict=True):
            of_row = extra.of(row, packed[number])
            terms = replace(terms, loss=terms.loss + scale * of_row, means={**terms.means, extra.name: of_row})
        return terms

    return both
