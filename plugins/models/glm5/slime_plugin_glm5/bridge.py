"""From the config.json of `glm_moe_dsa` to Megatron-core and back."""

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
from slime_plugin_glm5.published import GLM_MOE_DSA

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

    from slime_megatron.sparse_attention.config import SparseLatentConfig


class GlmMoeDsa:
    """GLM-5: latent attention to the keys that an indexer chooses, dense layers first, then experts.

    Layers without an indexer of their own attend to what the latest layer with one chose. The multi-token prediction
    layer has one whatever its number, and its keys are nobody else's.
    """

    family = "glm_moe_dsa"
    published = GLM_MOE_DSA

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return _read(hf)[0]

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]:
        return _read(hf)[1]

    def block_spec(self, config: SparseLatentConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
        from slime_plugin_glm5 import spec

        return spec.block(config, vp_stage)

    def mtp_spec(self, config: SparseLatentConfig) -> ModuleSpec:
        from slime_plugin_glm5 import spec

        return spec.prediction(config)

    def traits(self, hf: HfConfig) -> tuple[Traits, ...]:
        return (dsa.TRAITS, *mtp.traits(hf, self.mtp_spec), *moe.traits(self.transformer_config(hf)))

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        hf = GLM_MOE_DSA.complete(hf)
        return mtp.moe_mapping(hf, dsa.attention_rules(dsa.choosing_layers(hf)))

    def plan_problems(self, hf: HfConfig, megatron: Mapping[str, Any]) -> Sequence[str]:
        return dsa.problems(hf, megatron)


def _read(hf: HfConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = ConfigReader(hf, GLM_MOE_DSA)
    config = {
        **decoder.keywords(reader),
        **mla.keywords(reader),
        **dsa.keywords(reader),
        **moe.sigmoid_keywords(reader),
        **mtp.keywords(reader),
    }
    kwargs = embeddings.keywords(reader)
    reader.only("moe_router_dtype", "float32")
    reader.only("layer_types", None, ["deepseek_sparse_attention"] * reader.get("num_hidden_layers"))
    reader.skip("ep_size", "index_share_for_mtp_iteration", "num_experts", "pretraining_tp")
    reader.finish()
    return config, kwargs
