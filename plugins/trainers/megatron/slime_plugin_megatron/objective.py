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
Others = Callable[[int], Tensor | None]
"""From the micro-batch's number to the tokens [k, t] beside its labels that are scored, too."""
_WITH_THE_SAMPLES = (Source.rollout, Source.critic)
"""Whose columns the micro-batches have; a critic's were put there before (`slime_plugin_megatron.critic`)."""
NUM_SCORES = 2
"""Rows of the model's scores that every objective has: log-probs and entropies. Those of other tokens come behind."""


class StepLoss:
    """An objective's loss in one optimizer step. Called with a micro-batch's scores and number.

    Args:
        scored: by name of a column and micro-batch, what the passes before gave; of a pipeline stage other than the
            last there is none.
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

    def __call__(self, scores: Tensor, number: int) -> LossTerms:
        micro = self._micro_batches[number]
        masked = micro.loss_mask == 0
        own = scores[:NUM_SCORES].masked_fill(masked, 0.0)
        columns = {column.name: self._column(column, number, own, masked) for column in self._columns}
        sums = partial(sum_by_sequence, lengths=micro.sequence_lengths)
        inputs = LossInputs(micro.loss_mask, micro.loss_weights, columns, sums)
        if self._ids is not None:
            rows = scores[NUM_SCORES : NUM_SCORES + columns[self._ids.name].size(1)]
            inputs = replace(inputs, logprobs_of={self._ids.name: rows.masked_fill(masked, 0.0).t()})
        if micro.attempt_lengths is not None:
            inputs = replace(inputs, sum_by_attempt=partial(sum_by_sequence, lengths=micro.attempt_lengths))
        terms = self._objective.loss(own, inputs)
        _require_declared(self._objective, terms, self.metrics)
        return terms

    def _column(self, column: Column, number: int, scores: Tensor, masked: Tensor) -> Tensor:
        is_current = column.source is Source.policy and column.name not in self._scored
        return scores[0].detach() if is_current else self._given(column, number, masked)

    def _given(self, column: Column, number: int, masked: Tensor) -> Tensor:
        if column.source in _WITH_THE_SAMPLES:
            return self._micro_batches[number].columns[column.name]
        return self._scored[column.name][number].masked_fill(masked if column.width is None else masked[:, None], 0)


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
        for row, (extra, scale) in zip(scores[len(scores) - len(extra_losses) :], extra_losses, strict=True):
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
