"""The model of rewards: a family's layers, and one number a token behind them."""

from __future__ import annotations

from typing import Any

from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from torch import Tensor

from slime_megatron.train.model.packed.sequences import PackedSequences
from slime_megatron.train.model.value import ValueModel


class ScoringModel(ValueModel):
    """The last pipeline stage returns [1, tokens]: of each place the number of the token that follows, which stands
    where that token is predicted, so that a sequence's last number is that of its last token."""

    def _postprocess(self, hidden_states: Tensor, *args: Any, labels: Tensor | None = None, **kwargs: Any) -> Tensor:
        found = super()._postprocess(hidden_states, *args, labels=labels, **kwargs)
        if not self.post_process:
            return found
        if self.config.context_parallel_size == 1:
            return found.roll(-1, dims=1)
        return self._from_all_ranks(found[0], kwargs["packed_seq_params"])[None]

    def _from_all_ranks(self, own: Tensor, packed: PackedSequences) -> Tensor:
        """[t] of this context-parallel rank: the token that follows may be another one's."""
        order = packed.rows.order
        pack = gather_from_sequence_parallel_region(
            own[:, None], tensor_parallel_output_grad=True, group=self.pg_collection.cp
        ).index_select(0, order)
        mine = order.argsort().chunk(packed.cp_size)[packed.cp_rank]
        following: Tensor = pack.roll(-1, dims=0).index_select(0, mine)[:, 0]
        return following
