"""The activation between the two linears of a gated MLP, as a module that chose its kernel when it was built."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from slime_plugin_megatron.model.linear import device_of


class SwiGlu(MegatronModule):  # type: ignore[misc]
    """silu(gate) * up (Shazeer 2020). Megatron-core calls it where `config.use_te_activation_func` is set."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config=config)
        self.swiglu = plain_swiglu
        if device_of(config).type == "cuda":
            from slime_plugin_transformer.mlp.kernels import swiglu

            self.swiglu = swiglu

    def forward(self, gate_up: Tensor) -> Tensor:
        """[gate | up] [..., 2f] -> [..., f]."""
        return self.swiglu(gate_up)


def plain_swiglu(gate_up: Tensor) -> Tensor:
    """In plain torch operations."""
    gate, up = torch.chunk(gate_up, 2, dim=-1)
    return F.silu(gate) * up
