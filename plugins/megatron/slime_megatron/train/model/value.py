"""The model of a critic: the policy's layers with one number a token behind them, in the place of the output layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn.parameter import Parameter

from slime_megatron.train.model.linear import device_of, sharded
from slime_megatron.train.model.policy import ExtraHead, PolicyModel


class ValueHead(torch.nn.Module):
    """A linear layer to one number, in fp32, which starts at zero. Every tensor-parallel rank holds a copy and applies
    it to its part of the sequence; the mark `sequence_parallel` has its gradient summed over these ranks."""

    def __init__(self, config: TransformerConfig, group: dist.ProcessGroup) -> None:
        super().__init__()
        self._group = group
        self.weight = Parameter(torch.zeros(1, config.hidden_size, dtype=torch.float32, device=device_of(config)))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden: Tensor) -> Tensor:
        """[tokens, 1, hidden size] -> [tokens, 1], fp32."""
        return F.linear(hidden[:, 0].to(self.weight.dtype), self.weight)

    def in_fp32(self) -> None:
        """Again, where the whole model was cast to its compute precision."""
        self.weight.data = self.weight.data.float()

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """A replicated tensor."""
        return sharded({"weight": self.weight}, self._group, prefix, sharded_offsets, metadata)


class ValueModel(PolicyModel):
    """The last pipeline stage returns [1, tokens]: the value of each token's place, before the token is known. Other
    parameter names than `output_layer.weight` are the policy's."""

    def __init__(
        self, config: TransformerConfig, layer_spec: ModuleSpec, *, heads: Sequence[ExtraHead] = (), **kwargs: Any
    ) -> None:
        assert not heads, "a critic has no other heads"
        super().__init__(config, layer_spec, **(kwargs | {"share_embeddings_and_output_weights": False}))
        if self.post_process:
            self.output_layer = ValueHead(config, self.pg_collection.tp)

    def _postprocess(self, hidden_states: Tensor, *args: Any, labels: Tensor | None = None, **kwargs: Any) -> Tensor:
        if not self.post_process:
            return hidden_states
        values: Tensor = self.output_layer(hidden_states)
        if self.config.sequence_parallel:
            # All ranks compute the same loss of all values, so each takes its own part of their gradient back.
            values = gather_from_sequence_parallel_region(
                values, tensor_parallel_output_grad=False, group=self.pg_collection.tp
            )
        return values.transpose(0, 1)
