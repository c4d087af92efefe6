"""The core attention that a layer runs, and how it is run: what all kinds of attention share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from megatron.core.extensions.transformer_engine import HAVE_TE, TEDotProductAttention
from megatron.core.transformer.attention import Attention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from slime_megatron.train.model.linear import device_of
from slime_megatron.train.model.packed.sequences import PackedSequences
from slime_megatron.transformer.attention.packed import PackedAttention

CAUSAL = {"attn_mask_type": AttnMaskType.causal}


def core_attention(config: TransformerConfig) -> type:
    """Transformer Engine's attention where it is installed and the model is in bf16 on a GPU, else slime's own.

    Linears and norms stay Megatron-core's and torch's: Transformer Engine's change what a checkpoint holds.
    """
    on_gpu = device_of(config).type == "cuda"
    return TEDotProductAttention if HAVE_TE and on_gpu and config.params_dtype is torch.bfloat16 else PackedAttention


def attended(
    layer: Attention, heads: Sequence[Tensor], attention_mask: Tensor | None, packed: PackedSequences
) -> Tensor:
    """From queries, keys and values, as `PackedAttention` takes them, to [t, 1, heads * value size]; computed again in
    the backward pass where that is wanted."""
    recompute = layer.checkpoint_core_attention and layer.training
    attend = layer._checkpointed_attention_forward if recompute else layer.core_attention
    mask_type = layer.attn_mask_type
    out: Tensor = attend(*heads, attention_mask, attn_mask_type=mask_type, packed_seq_params=packed)
    return out.reshape(len(out), 1, -1)
