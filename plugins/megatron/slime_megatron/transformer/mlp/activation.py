"""The activation between the two linears of a gated MLP, by the kernel of a device."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from slime_megatron.train.model.linear import device_of


class SwiGlu(MegatronModule):  # type: ignore[misc]
    """silu(gate) * up (Shazeer 2020). Megatron-core calls it where `config.use_te_activation_func` is set."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config=config)
        self.swiglu = plain_swiglu
        if device_of(config).type == "cuda":
            from slime_megatron.transformer.mlp.kernels import swiglu

            self.swiglu = swiglu

    def forward(self, gate_up: Tensor) -> Tensor:
        """[gate | up] [..., 2f] -> [..., f]."""
        return self.swiglu(gate_up)


def plain_swiglu(gate_up: Tensor) -> Tensor:
    """In plain torch operations."""
    gate, up = torch.chunk(gate_up, 2, dim=-1)
    return F.silu(gate) * up


WeightedSwiGlu = Callable[[Tensor, Tensor], Tensor]
"""[gate | up] [n, 2f] and the weight of each row [n] -> silu(gate) * up * weight [n, f], in the precision of the
former."""


def weighted_swiglu(device: torch.device) -> WeightedSwiGlu:
    """The best form for a device."""
    if device.type == "cpu":
        return plain_weighted_swiglu
    from slime_megatron.transformer.mlp.kernels import weighted_swiglu

    return weighted_swiglu


def plain_weighted_swiglu(gate_up: Tensor, weights: Tensor) -> Tensor:
    """`WeightedSwiGlu` in plain torch operations."""
    return (plain_swiglu(gate_up) * weights[:, None]).to(gate_up.dtype)
