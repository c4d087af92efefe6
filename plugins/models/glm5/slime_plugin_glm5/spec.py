"""Layer specs of `glm_moe_dsa`, from the portable blocks."""

from __future__ import annotations

from functools import partial

from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

from slime_megatron.mixture_of_experts.module import dense_or_moe_layer
from slime_megatron.multi_token_prediction.module import mtp_layer
from slime_megatron.sparse_attention.config import SparseLatentConfig
from slime_megatron.sparse_attention.module import dsa, sparse_latent_attention
from slime_megatron.transformer import specs


def block(config: SparseLatentConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
    """Sparse attention everywhere; dense or expert layers, as `moe_layer_freq` says."""
    layer = partial(dense_or_moe_layer, config, attention=dsa(config, vp_stage))
    return specs.decoder_block(config, vp_stage, layer)


def prediction(config: SparseLatentConfig) -> ModuleSpec:
    """The multi-token prediction layer, with experts and an indexer of its own."""
    layer = dense_or_moe_layer(config, True, attention=sparse_latent_attention())
    return mtp_layer(config, layer)
