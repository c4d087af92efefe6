"""From the config.json of `deepseek_v3` and `deepseek_v32` to Megatron-core and back."""

from __future__ import annotations

from typing import Any

import slime_megatron.latent_attention as mla
import slime_megatron.mixture_of_experts as moe
import slime_megatron.multi_token_prediction as mtp
import slime_megatron.sparse_attention as dsa
from slime.models.config_reader import ConfigReader
from slime_megatron.family import ExpertDecoder, SparseDecoder
from slime_megatron.transformer import decoder, embeddings
from slime_plugin_deepseek_v3.published import DEEPSEEK_V3, DEEPSEEK_V32


class DeepseekV3(ExpertDecoder):
    """DeepSeek-V3 and R1 (arXiv 2412.19437): latent attention, dense layers, then experts routed in groups."""

    family = "deepseek_v3"
    published = DEEPSEEK_V3

    def read(self, reader: ConfigReader) -> tuple[dict[str, Any], dict[str, Any]]:
        config = _keywords(reader)
        reader.only("head_dim", reader.get("qk_rope_head_dim"), None)
        return config, embeddings.keywords(reader)


class DeepseekV32(SparseDecoder):
    """DeepSeek-V3.2 (DeepSeek-AI 2025): as V3, but every layer attends to the keys that its indexer chooses."""

    family = "deepseek_v32"
    published = DEEPSEEK_V32

    def read(self, reader: ConfigReader) -> tuple[dict[str, Any], dict[str, Any]]:
        config = _keywords(reader)
        reader.only("layer_types", None, ["deepseek_sparse_attention"] * config["num_layers"])
        reader.only("index_topk_freq", None, 1)
        for choosing_layers in ("index_topk_pattern", "indexer_types"):
            reader.only(choosing_layers, None)
        reader.only("indexer_rope_interleave", False)  # transformers' class does not heed it, SGLang's does
        return config | dsa.keywords(reader), embeddings.keywords(reader)


def _keywords(reader: ConfigReader) -> dict[str, Any]:
    reader.only("num_experts", None, reader.get("n_routed_experts"))
    reader.skip("aux_loss_alpha", "ep_size", "pretraining_tp", "seq_aux")
    experts = {**moe.sigmoid_keywords(reader), **mtp.keywords(reader)}
    return {**decoder.keywords(reader), **mla.keywords(reader), **experts}
