"""Layer spec of `qwen2`, from the portable blocks."""

from __future__ import annotations

from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

from slime_megatron.transformer import specs


def block(config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
    """Dense layers."""
    layer = specs.transformer_layer(config, attention=specs.gqa(config), mlp=specs.gated_mlp(config))
    return specs.decoder_block(config, vp_stage, lambda moe: layer)
