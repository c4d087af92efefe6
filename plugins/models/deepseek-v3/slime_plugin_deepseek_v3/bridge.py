"""From the config.json of `deepseek_v3` and `deepseek_v32` to Megatron-core and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import slime_megatron.latent_attention as mla
import slime_megatron.mixture_of_experts as moe
import slime_megatron.multi_token_prediction as mtp
import slime_megatron.sparse_attention as dsa
from slime.models.bridge import HfConfig
from slime.models.config_reader import ConfigReader
from slime.models.mapping import WeightMapping
from slime.models.traits import Traits
from slime_megatron.transformer import decoder, embeddings
from slime_plugin_deepseek_v3.published import DEEPSEEK_V3, DEEPSEEK_V32

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

    from slime_megatron.sparse_attention.config import SparseLatentConfig


class DeepseekV3:
    """DeepSeek-V3 and R1 (arXiv 2412.19437): latent attention, dense layers, then experts routed in groups."""

    family = "deepseek_v3"
    published = DEEPSEEK_V3

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return _read(hf)[0]

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]:
        return _read(hf)[1]

    def block_spec(self, config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
        from slime_plugin_deepseek_v3 import spec

        return spec.block(config, vp_stage)

    def mtp_spec(self, config: TransformerConfig) -> ModuleSpec:
        from slime_plugin_deepseek_v3 import spec

        return spec.prediction(config)

    def traits(self, hf: HfConfig) -> tuple[Traits, ...]:
        return (*mtp.traits(hf, self.mtp_spec), *moe.traits(self.transformer_config(hf)))

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        hf = DEEPSEEK_V3.complete(hf)
        return mtp.moe_mapping(hf, mla.rules(q_lora=hf["q_lora_rank"] is not None))


class DeepseekV32:
    """DeepSeek-V3.2 (DeepSeek-AI 2025): as V3, but every layer attends to the keys that its indexer chooses."""

    family = "deepseek_v32"
    published = DEEPSEEK_V32

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return _read(hf, sparse=True)[0]

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]:
        return _read(hf, sparse=True)[1]

    def block_spec(self, config: SparseLatentConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
        from slime_plugin_deepseek_v3 import spec

        return spec.sparse_block(config, vp_stage)

    def mtp_spec(self, config: SparseLatentConfig) -> ModuleSpec:
        from slime_plugin_deepseek_v3 import spec

        return spec.sparse_prediction(config)

    def traits(self, hf: HfConfig) -> tuple[Traits, ...]:
        return (dsa.TRAITS, *mtp.traits(hf, self.mtp_spec), *moe.traits(self.transformer_config(hf)))

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        hf = DEEPSEEK_V32.complete(hf)
        return mtp.moe_mapping(hf, dsa.attention_rules())

    def plan_problems(self, hf: HfConfig, megatron: Mapping[str, Any]) -> Sequence[str]:
        return dsa.problems(hf, megatron)


def _read(hf: HfConfig, *, sparse: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = ConfigReader(hf, DEEPSEEK_V32 if sparse else DEEPSEEK_V3)
    reader.only("num_experts", None, reader.get("n_routed_experts"))
    reader.skip("aux_loss_alpha", "ep_size", "pretraining_tp", "seq_aux")
    config = {
        **decoder.keywords(reader),
        **mla.keywords(reader),
        **moe.sigmoid_keywords(reader),
        **mtp.keywords(reader),
    }
    if not sparse:
        reader.only("head_dim", reader.get("qk_rope_head_dim"), None)
    if sparse:
        reader.only("layer_types", None, ["deepseek_sparse_attention"] * config["num_layers"])
        reader.only("index_topk_freq", None, 1)
        for choosing_layers in ("index_topk_pattern", "indexer_types"):
            reader.only(choosing_layers, None)
        reader.only("indexer_rope_interleave", False)  # transformers' class does not heed it, SGLang's does
        config |= dsa.keywords(reader)
    kwargs = embeddings.keywords(reader)
    reader.finish()
    return config, kwargs
