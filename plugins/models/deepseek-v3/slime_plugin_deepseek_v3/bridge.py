"""From the config.json of `deepseek_v3` to Megatron-core and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slime import architecture
from slime.architecture import ConfigReader
from slime.contracts import HfConfig
from slime.weights import blocks
from slime.weights.mapping import WeightMapping

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig


class DeepseekV3:
    """DeepSeek-V3 and R1 (arXiv 2412.19437): latent attention, dense layers, then experts routed in groups."""

    family = "deepseek_v3"

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

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        return blocks.moe_decoder(hf, blocks.mla(q_lora=hf.get("q_lora_rank") is not None))


def _read(hf: HfConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = ConfigReader(hf)
    reader.only("moe_layer_freq", 1)
    reader.only("scoring_func", "sigmoid")
    reader.only("topk_method", "noaux_tc")
    for not_of_the_forward_pass in (
        "aux_loss_alpha",
        "ep_size",
        "pretraining_tp",
        "seq_aux",
    ):
        reader.get(not_of_the_forward_pass, None)
    config = {
        **architecture.decoder(reader),
        **architecture.mla(reader),
        **architecture.sigmoid_moe(reader),
        **architecture.mtp(reader),
    }
    kwargs = architecture.embeddings(reader)
    reader.finish()
    return config, kwargs
