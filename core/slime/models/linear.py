"""Norms and linear layers for Megatron-core's slots that it has no portable module for.

Parameters that every tensor-parallel rank holds whole, but that see only its part of the sequence, carry the mark
`sequence_parallel`: Megatron-core's `finalize_model_grads` then sums their gradients over the tensor-parallel group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel.layers import RowParallelLinear
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor
from torch.nn.parameter import Parameter


class RMSNorm(torch.nn.Module):
    """Root-mean-square norm (Zhang & Sennrich 2019) over the last dimension."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = Parameter(torch.ones(hidden_size, dtype=config.params_dtype, device=device_of(config)))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden_size] -> the same shape."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class PostNormRowParallelLinear(RowParallelLinear):  # type: ignore[misc]
    """Row-parallel linear with a norm on its output: the second half of a sandwich norm."""

    def __init__(self, input_size: int, output_size: int, *, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        self.post_layernorm = RMSNorm(config, output_size, config.layernorm_epsilon)

    def forward(self, input_: Tensor) -> tuple[Tensor, None]:
        """[tokens, batch, input_size / tp] -> [tokens (/ tp under sequence parallelism), batch, output_size]."""
        output, bias = super().forward(input_)
        assert bias is None, "a bias would have to be added before the norm"
        return self.post_layernorm(output), None

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """As upstream, with the norm's weight as a replicated tensor."""
        assert metadata is not None, "Megatron-core passes the data-parallel group in metadata"
        sharded: dict[str, Any] = super().sharded_state_dict(prefix, sharded_offsets, metadata)
        norm = make_sharded_tensors_for_checkpoint(
            {"weight": self.post_layernorm.weight},
            f"{prefix}post_layernorm.",
            {},
            sharded_offsets,
            tp_group=self.tp_group,
            dp_cp_group=metadata["dp_cp_group"],
        )
        sharded.update(norm)
        return sharded


class ReplicatedLinear(torch.nn.Module):
    """Linear layer that every tensor-parallel rank holds whole and applies to its part of the sequence."""

    def __init__(
        self, input_size: int, output_size: int, *, config: TransformerConfig, init_method: Callable[[Tensor], Any]
    ) -> None:
        super().__init__()
        shape = (output_size, input_size)
        self.weight = Parameter(torch.empty(shape, dtype=config.params_dtype, device=device_of(config)))
        if config.perform_initialization:
            init_method(self.weight)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """[..., input_size] -> [..., output_size], and no bias."""
        return F.linear(x, self.weight), None


def device_of(config: TransformerConfig) -> torch.device:
    """Where Megatron-core's own layers allocate their parameters."""
    return torch.device("cpu" if config.use_cpu_initialization else torch.cuda.current_device())
