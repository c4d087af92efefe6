"""Layer spec of `qwen3` and `qwen3_moe`, from the portable blocks."""

from __future__ import annotations

from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

from slime_megatron.mixture_of_experts.module import dense_or_moe_layer
from slime_megatron.transformer import specs


def block(config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
    """Dense layers, or experts in all of them."""

    def layer(moe: bool) -> ModuleSpec:
        return dense_or_moe_layer(config, moe, attention=specs.gqa(config))

    return specs.decoder_block(config, vp_stage, layer)
