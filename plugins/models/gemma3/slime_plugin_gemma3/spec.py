"""The layer of `gemma3_text`: the portable blocks, and what is Gemma's own."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention
from torch import Tensor

from slime_megatron.transformer import specs
from slime_megatron.transformer.decoder.module import PackedTransformerLayer
from slime_megatron.transformer.gqa.module import PackedSelfAttention
from slime_plugin_gemma3.published import LOCAL_BASE


def layer(config: TransformerConfig) -> ModuleSpec:
    """A dense layer with norms on both sides of attention and MLP."""
    attention = replace(specs.gqa(config, post_norm=True), module=TwoBaseSelfAttention)
    mlp = specs.gated_mlp(config, post_norm=True, activation=GeluTanhGate)
    return replace(specs.transformer_layer(config, attention=attention, mlp=mlp), module=ScaledInputLayer)


class ScaledInputLayer(PackedTransformerLayer):
    """A layer whose input, in the first of the model, is the embeddings times the root of the hidden size.

    As in Gemma's own code the factor has the precision of the embeddings: 25.25 for 640 in bf16.
    """

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """As upstream."""
        if self.layer_number == 1:
            factor = torch.tensor(self.config.hidden_size**0.5, dtype=hidden_states.dtype).item()
            hidden_states = hidden_states * factor
        return super().forward(hidden_states, *args, **kwargs)


class TwoBaseSelfAttention(PackedSelfAttention):
    """Self-attention whose rotary angles are the model's in global layers, and others in those with a window."""

    def __init__(self, config: TransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.is_local = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, self.layer_number)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *,
        rotary_pos_emb: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As upstream."""
        assert rotary_pos_emb is not None, "every Gemma 3 has rotary embeddings"
        if self.is_local:
            of_local = local_rotary(self.config.kv_channels, self.config.use_cpu_initialization)
            rotary_pos_emb = of_local(len(rotary_pos_emb), packed_seq=True)
        return super().forward(hidden_states, attention_mask, rotary_pos_emb=rotary_pos_emb, **kwargs)


@cache
def local_rotary(size: int, on_cpu: bool) -> RotaryEmbedding:
    """The local layers' angles: one object for all, so that a pack keeps one table of them."""
    return RotaryEmbedding(size, rotary_percent=1.0, rotary_base=LOCAL_BASE, use_cpu_initialization=on_cpu)


class GeluTanhGate(MegatronModule):  # type: ignore[misc]
    """gelu(gate) * up by the tanh form of GELU (Hendrycks & Gimpel 2016)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config=config)

    def forward(self, gate_up: Tensor) -> Tensor:
        """[gate | up] [..., 2f] -> [..., f]."""
        gate, up = torch.chunk(gate_up, 2, dim=-1)
        return F.gelu(gate, approximate="tanh") * up
