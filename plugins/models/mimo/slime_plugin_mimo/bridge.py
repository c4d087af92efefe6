"""From the config.json of `mimo` to Megatron-core and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slime import architecture
from slime.architecture import ConfigReader
from slime.contracts import HfConfig
from slime.weights import blocks
from slime.weights.mapping import WeightMapping

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

_OF_MTP = (
    "token_layernorm.weight",
    "hidden_layernorm.weight",
    "input_proj.weight",
    "final_layernorm.weight",
    "input_layernorm.weight",
    *(f"self_attn.{x}_proj.{kind}" for x in "qkv" for kind in ("weight", "bias")),
    "self_attn.o_proj.weight",
    "post_attention_layernorm.weight",
    *(f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")),
)


class Mimo:
    """MiMo (arXiv 2505.07608): Qwen2's grouped-query attention with biases on q/k/v, rotate-half rotary.

    Multi-token prediction layers of a checkpoint (`num_nextn_predict_layers`) are recognised and left out.
    """

    family = "mimo"

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return _read(hf)[0]

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]:
        return _read(hf)[1]

    def block_spec(self, config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
        from slime_plugin_mimo import spec

        return spec.block(config, vp_stage)

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        rules = (
            *blocks.embeddings(hf["vocab_size"]),
            *blocks.norms(),
            *blocks.gqa(hf["num_attention_heads"], hf["num_key_value_heads"], bias=True),
            *blocks.gated_mlp(),
            *blocks.output(hf["vocab_size"], tied=hf.get("tie_word_embeddings", False)),
        )
        num_mtp_layers = hf.get("num_nextn_predict_layers", 0)
        mtp = frozenset(f"model.mtp_layers.{layer}.{name}" for layer in range(num_mtp_layers) for name in _OF_MTP)
        return WeightMapping(rules, hf["num_hidden_layers"], ignored=mtp)

    def plan_problems(self, hf: HfConfig, megatron: Mapping[str, Any]) -> Sequence[str]:
        return architecture.gqa_problems(hf, megatron)


def _read(hf: HfConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = ConfigReader(hf)
    reader.only("use_sliding_window", False)
    reader.only("layer_types", None, ["full_attention"] * reader.get("num_hidden_layers"))
    reader.only("attention_bias", True)
    reader.only("use_mrope", False)
    for not_of_the_forward_pass in ("max_window_layers", "num_nextn_predict_layers", "sliding_window"):
        reader.get(not_of_the_forward_pass, None)
    config = {
        **architecture.decoder(reader),
        **architecture.gqa(reader, bias=True, qk_norm=False, rotary_interleaved=False),
    }
    kwargs = {**architecture.rotary(reader, default_percent=1.0), **architecture.embeddings(reader)}
    reader.finish()
    return config, kwargs
