"""Layer specs of `mimo`, from the portable blocks."""

from __future__ import annotations

from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

from slime_megatron.multi_token_prediction.module import mtp_layer
from slime_megatron.transformer import specs


def block(config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
    """Dense layers."""
    return specs.decoder_block(config, vp_stage, lambda moe: _layer(config))


def prediction(config: TransformerConfig) -> ModuleSpec:
    """The multi-token prediction layer, whose projection takes the hidden state first."""
    return mtp_layer(config, _layer(config), hidden_first=True)


def _layer(config: TransformerConfig) -> ModuleSpec:
    return specs.transformer_layer(config, attention=specs.gqa(config), mlp=specs.gated_mlp(config))
