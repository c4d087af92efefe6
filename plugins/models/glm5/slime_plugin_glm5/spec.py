"""Layer specs of `glm_moe_dsa`, from the portable blocks."""

from __future__ import annotations

from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

from slime.train import specs
from slime.train.specs.dsa import dsa
from slime.train.specs.dsa_config import SparseLatentConfig


def block(config: SparseLatentConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
    """Sparse attention everywhere; dense or expert layers, as `moe_layer_freq` says."""
    attention = dsa(config, vp_stage)

    def layer(moe: bool) -> ModuleSpec:
        return specs.dense_or_moe_layer(config, moe, attention=attention)

    return specs.decoder_block(config, vp_stage, layer)
