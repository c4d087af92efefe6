"""Norms and linear layers for Megatron-core's slots that it has no portable module for.

Parameters that every tensor-parallel rank holds whole, but that see only its part of the sequence, carry the mark
`sequence_parallel`: Megatron-core's `finalize_model_grads` then sums their gradients over the tensor-parallel group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor
from torch.nn.parameter import Parameter

from batch_invariant.passes import instead, is_on
from batch_invariant.rows import rms_norm


class RMSNorm(torch.nn.Module):
    """Root-mean-square norm (Zhang & Sennrich 2019) over the last dimension.

    With `config.layernorm_zero_centered_gamma` the factor is 1 + weight, added and multiplied in fp32.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps, self.zero_centered = eps, config.layernorm_zero_centered_gamma
        begin = torch.zeros if self.zero_centered else torch.ones
        self.weight = Parameter(begin(hidden_size, dtype=config.params_dtype, device=device_of(config)))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden_size] -> the same shape."""
        if is_on():
            assert not self.zero_centered
            return instead(self._norm, lambda x: rms_norm(x, self.weight, self.eps), x)
        return self._norm(x)

    def _norm(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            from slime_megatron.train.model import norm

            return norm.rms_norm(x, self.weight, self.eps, zero_centered=self.zero_centered)
        if self.zero_centered:
            return F.rms_norm(x.float(), self.weight.shape, 1 + self.weight.float(), self.eps).to(x.dtype)
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


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


@runtime_checkable
class Adapted(Protocol):
    """A linear layer with a `weight` to which an adapter adds something (`slime.topology.adapters`)."""

    # No data member here: from Python 3.12 on `isinstance` does not see those that a Module keeps in `_parameters`.
    def added_weight(self) -> Tensor:
        """What the adapter amounts to, in fp32, of the shape of this rank's `weight`, with gradient."""


def whole_weight(layer: Any) -> Tensor:
    """What a linear layer multiplies with: its weight, and what an adapter adds, in the precision of the weight."""
    weight: Tensor = layer.weight
    if not isinstance(layer, Adapted):
        return weight
    return (layer.added_weight() + weight).to(weight.dtype)


def device_of(config: TransformerConfig) -> torch.device:
    """Where Megatron-core's own layers allocate their parameters."""
    return torch.device("cpu" if config.use_cpu_initialization else torch.cuda.current_device())


def sharded(
    tensors: Mapping[str, Tensor],
    group: dist.ProcessGroup,
    prefix: str,
    offsets: tuple[Any, ...],
    metadata: Mapping[str, Any] | None,
    axes: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Parameters that Megatron-core's own modules lack, as a `sharded_state_dict`, which the last arguments are of.

    Args:
        group: of tensor parallelism.
        axes: by name, the dimension over which the group divides a parameter; all others are whole on every rank.
    """
    assert metadata is not None, "Megatron-core passes the data-parallel group in metadata"
    groups = {"tp_group": group, "dp_cp_group": metadata["dp_cp_group"]}
    found: dict[str, Any] = make_sharded_tensors_for_checkpoint(tensors, prefix, axes or {}, offsets, **groups)
    return found
