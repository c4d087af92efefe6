"""The activation between the two linears of a gated MLP, by the kernel of a device."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from batch_invariant import rows
from batch_invariant.passes import instead, is_on
from slime_megatron.train.model.linear import device_of


class SwiGlu(MegatronModule):  # type: ignore[misc]
    """silu(gate) * up (Shazeer 2020). Megatron-core calls it where `config.use_te_activation_func` is set."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config=config)
        self.swiglu = swiglu(device_of(config))

    def forward(self, gate_up: Tensor) -> Tensor:
        """[gate | up] [..., 2f] -> [..., f]."""
        return instead(self.swiglu, rows.swiglu, gate_up) if is_on() else self.swiglu(gate_up)


def swiglu(device: torch.device) -> Callable[..., Tensor]:
    """`plain_swiglu` in the best form for a device."""
    if device.type == "cpu":
        return plain_swiglu
    from slime_megatron.transformer.mlp.kernels import swiglu

    return swiglu


def plain_swiglu(gate_up: Tensor, weights: Tensor | None = None) -> Tensor:
    """[gate | up] [..., 2f] -> [..., f] in its precision, times the weight of each row [n], if given."""
    gate, up = torch.chunk(gate_up, 2, dim=-1)
    out = F.silu(gate) * up
    return out if weights is None else (out * weights[:, None]).to(gate_up.dtype)
