"""Between an objective and Megatron-core's schedules: its columns are put together, its loss is called and checked.

Shape letter: t tokens of this rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from slime.contracts import Column, LossInputs, LossTerms, Metrics, Objective, Source
from slime.errors import SlimeError
from slime.models.traits import ExtraLoss
from slime_plugin_megatron.local_batch import LocalMicroBatch
from slime_plugin_megatron.model.packed.sequences import PackedSequences
from slime_plugin_megatron.sequence_sums import sum_by_sequence

LossFunction = Callable[[Tensor, int], LossTerms]
"""From scores and the micro-batch's number to what it adds."""
_WITH_THE_SAMPLES = (Source.rollout, Source.critic)
"""Whose columns the micro-batches have; a critic's were put there before (`slime_plugin_megatron.critic`)."""
NUM_SCORES = 2
"""Rows of the model's scores that belong to the objective: log-probs and entropies."""


class StepLoss:
    """An objective's loss in one optimizer step. Called with a micro-batch's scores and number.

    Args:
        scored: log-probs [t] by source and micro-batch, of the passes before; of a pipeline stage other than the last
            there are none.
        is_first: the weights are still those before the first optimizer step, so that the model's own log-probs are
            those of `Source.policy`, if no pass was made for them.
    """

    def __init__(
        self,
        objective: Objective,
        micro_batches: Sequence[LocalMicroBatch],
        scored: Mapping[Source, Sequence[Tensor]],
        *,
        is_first: bool,
    ) -> None:
        self._objective, self._micro_batches, self._scored = objective, micro_batches, scored
        self._is_current = is_first and Source.policy not in scored
        self._columns = [column for column in objective.needs if self._comes(column)]
        self.metrics: Metrics = objective.metrics([column.name for column in self._columns])

    def _comes(self, column: Column) -> bool:
        if column.source in _WITH_THE_SAMPLES:
            comes = column.name in self._micro_batches[0].columns
        else:
            comes = column.source in self._scored or (column.source is Source.policy and self._is_current)
        assert comes or column.optional, f"the samples have no column '{column.name}', and nobody scored it"
        return comes

    def __call__(self, scores: Tensor, number: int) -> LossTerms:
        micro = self._micro_batches[number]
        masked = micro.loss_mask == 0
        own = scores[:NUM_SCORES].masked_fill(masked, 0.0)
        columns = {column.name: self._column(column, number, own, masked) for column in self._columns}
        sums = partial(sum_by_sequence, lengths=micro.sequence_lengths)
        inputs = LossInputs(micro.loss_mask, micro.loss_weights, columns, sums)
        if micro.attempt_lengths is not None:
            inputs = replace(inputs, sum_by_attempt=partial(sum_by_sequence, lengths=micro.attempt_lengths))
        terms = self._objective.loss(own, inputs)
        _require_declared(self._objective, terms, self.metrics)
        return terms

    def _column(self, column: Column, number: int, scores: Tensor, masked: Tensor) -> Tensor:
        if column.source in _WITH_THE_SAMPLES:
            return self._micro_batches[number].columns[column.name]
        if column.source in self._scored:
            return self._scored[column.source][number].masked_fill(masked, 0.0)
        return scores[0].detach()


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
    """`loss`, and the extra ones, each of one of the rows of scores behind the objective's.

    Args:
        extra_losses: with their weights.
        packed: by micro-batch.
    """

    def both(scores: Tensor, number: int) -> LossTerms:
        terms = loss(scores, number)
        for row, (extra, scale) in zip(scores[NUM_SCORES:], extra_losses, strict=True):
            terms = with_extra_loss(terms, extra.name, extra.of(row, packed[number]), scale)
        return terms

    return both


def with_extra_loss(terms: LossTerms, name: str, loss: Tensor, scale: float) -> LossTerms:
    """With the loss of another part of the model, a scalar, under its own name.

    Args:
        scale: the loss's weight; `loss` among the means stays the objective's own.
    """
    means = {**terms.means, name: loss}
    return replace(terms, loss=terms.loss + scale * loss, means=means)
