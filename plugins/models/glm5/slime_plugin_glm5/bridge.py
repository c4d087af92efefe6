"""From the config.json of `glm_moe_dsa` to Megatron-core and back."""

from __future__ import annotations

from typing import Any

import slime_megatron.latent_attention as mla
import slime_megatron.mixture_of_experts as moe
import slime_megatron.multi_token_prediction as mtp
import slime_megatron.sparse_attention as dsa
from slime.models.config_reader import ConfigReader
from slime_megatron.family import SparseDecoder
from slime_megatron.transformer import decoder, embeddings
from slime_plugin_glm5.published import GLM_MOE_DSA


class GlmMoeDsa(SparseDecoder):
    """GLM-5: latent attention to the keys that an indexer chooses, dense layers first, then experts.

    Layers without an indexer of their own attend to what the latest layer with one chose. The multi-token prediction
    layer has one whatever its number, and its keys are nobody else's.
    """

    family = "glm_moe_dsa"
    published = GLM_MOE_DSA

    def read(self, reader: ConfigReader) -> tuple[dict[str, Any], dict[str, Any]]:
        config = {
            **decoder.keywords(reader),
            **mla.keywords(reader),
            **dsa.keywords(reader),
            **moe.sigmoid_keywords(reader),
            **mtp.keywords(reader),
        }
        reader.only("moe_router_dtype", "float32")
        reader.only("layer_types", None, ["deepseek_sparse_attention"] * reader.get("num_hidden_layers"))
        reader.skip("ep_size", "index_share_for_mtp_iteration", "num_experts", "pretraining_tp")
        return config, embeddings.keywords(reader)
