"""Layer specs of `deepseek_v3` and `deepseek_v32`, from the portable blocks."""

from __future__ import annotations

from functools import partial
from typing import cast

from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

from slime_megatron.latent_attention.module import mla as latent_attention
from slime_megatron.mixture_of_experts.module import dense_or_moe_layer
from slime_megatron.multi_token_prediction.module import mtp_layer
from slime_megatron.sparse_attention.config import SparseLatentConfig
from slime_megatron.sparse_attention.module import dsa, sparse_latent_attention
from slime_megatron.transformer import specs


def block(config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
    """Latent attention; dense or expert layers, as `moe_layer_freq` says."""
    return specs.decoder_block(config, vp_stage, partial(_layer, config))


def prediction(config: TransformerConfig) -> ModuleSpec:
    """The multi-token prediction layer, with experts."""
    return mtp_layer(config, _layer(config, True))


def sparse_block(config: SparseLatentConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
    """As `block`, with sparse attention."""
    layer = partial(dense_or_moe_layer, config, attention=dsa(config, vp_stage))
    return specs.decoder_block(config, vp_stage, layer)


def sparse_prediction(config: SparseLatentConfig) -> ModuleSpec:
    """As `prediction`, with sparse attention and an indexer of its own."""
    return mtp_layer(config, dense_or_moe_layer(config, True, attention=sparse_latent_attention()))


def _layer(config: TransformerConfig, moe: bool) -> ModuleSpec:
    return dense_or_moe_layer(config, moe, attention=latent_attention(cast(MLATransformerConfig, config)))
