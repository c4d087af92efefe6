"""Layer specs of `glm4`, `glm4_moe` and `glm4_moe_lite`, from the portable blocks."""

from __future__ import annotations

from functools import partial
from typing import cast

from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

from slime_megatron.latent_attention.module import mla as latent_attention
from slime_megatron.mixture_of_experts.module import dense_or_moe_layer
from slime_megatron.multi_token_prediction.module import mtp_layer
from slime_megatron.transformer import specs


def dense_block(config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
    """Layers whose attention and MLP outputs have norms of their own (sandwich norms)."""

    def layer(moe: bool) -> ModuleSpec:
        attention, mlp = specs.gqa(config, post_norm=True), specs.gated_mlp(config, post_norm=True)
        return specs.transformer_layer(config, attention=attention, mlp=mlp)

    return specs.decoder_block(config, vp_stage, layer)


def moe_block(config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
    """Dense or expert layers, as `moe_layer_freq` says."""
    return specs.decoder_block(config, vp_stage, partial(_moe_layer, config))


def moe_prediction(config: TransformerConfig) -> ModuleSpec:
    """The multi-token prediction layer, with experts."""
    return mtp_layer(config, _moe_layer(config, True))


def _moe_layer(config: TransformerConfig, moe: bool) -> ModuleSpec:
    return dense_or_moe_layer(config, moe, attention=specs.gqa(config))


def latent_moe_block(config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
    """Latent attention; dense or expert layers, as `moe_layer_freq` says."""
    return specs.decoder_block(config, vp_stage, partial(_latent_moe_layer, config))


def latent_moe_prediction(config: TransformerConfig) -> ModuleSpec:
    """The multi-token prediction layer, with latent attention and experts."""
    return mtp_layer(config, _latent_moe_layer(config, True))


def _latent_moe_layer(config: TransformerConfig, moe: bool) -> ModuleSpec:
    return dense_or_moe_layer(config, moe, attention=latent_attention(cast(MLATransformerConfig, config)))
