"""Pre-norm decoder layers: keywords, the norms, and the whole table of a common kind of decoder. No torch."""

from __future__ import annotations

from typing import Any

from slime.contracts import HfConfig
from slime.models import embeddings, mlp, moe, mtp, output
from slime.models.config_reader import ConfigReader
from slime.models.rules import Rules, layer_rule
from slime.models.shapes import HIDDEN_NORM
from slime.weights.megatron.mapping import WeightMapping


def keywords(reader: ConfigReader) -> dict[str, Any]:
    """Sizes and norms of a pre-norm decoder with a SiLU-gated MLP and RMSNorm."""
    reader.only("attention_dropout", 0, 0.0)
    return {
        "num_layers": reader.get("num_hidden_layers"),
        "hidden_size": reader.get("hidden_size"),
        "ffn_hidden_size": reader.get("intermediate_size"),
        "activation_func": reader.only("hidden_act", "silu"),
        "gated_linear_unit": True,
        "add_bias_linear": False,
        "normalization": "RMSNorm",
        "layernorm_epsilon": reader.get("rms_norm_eps"),
        "init_method_std": reader.get("initializer_range", 0.02),
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }


def norm_rules() -> Rules:
    """The norms before attention and before the MLP."""
    return (
        layer_rule("input_layernorm.weight", "input_layernorm.weight"),
        layer_rule("pre_mlp_layernorm.weight", "post_attention_layernorm.weight"),
    )


def sandwich_norm_rules() -> Rules:
    """The norms on the outputs of attention and MLP (specs with `post_norm=True`)."""
    return (
        layer_rule("self_attention.linear_proj.post_layernorm.weight", "post_self_attn_layernorm.weight"),
        layer_rule("mlp.linear_fc2.post_layernorm.weight", "post_mlp_layernorm.weight"),
    )


def moe_mapping(hf: HfConfig, attention: Rules) -> WeightMapping:
    """The whole table of a decoder with `first_k_dense_replace` dense layers, then experts with a correction bias.

    Args:
        hf: sizes, and whether there are a shared expert, tied embeddings, and a multi-token prediction layer, which is
            numbered behind the last.
        attention: of every layer; what it gives only some layers, the prediction layer has as well.
    """
    num_dense, num_layers = hf["first_k_dense_replace"], hf["num_hidden_layers"]
    dense, sparse = tuple(range(min(num_dense, num_layers))), tuple(range(num_dense, num_layers))
    shared_expert, copies = hf["n_shared_experts"] > 0, dict[str, str]()
    rules = (
        *embeddings.rules(hf["vocab_size"]),
        *norm_rules(),
        *attention,
        *mlp.rules(dense),
        *moe.rules(sparse, shared_expert=shared_expert, correction_bias=True),
        *output.rules(hf["vocab_size"], tied=hf.get("tie_word_embeddings", False)),
    )
    if hf.get("num_nextn_predict_layers"):
        prefix = f"model.layers.{num_layers}."
        layer = (*norm_rules(), *attention, *moe.rules(shared_expert=shared_expert, correction_bias=True))
        rules, copies = (*rules, *mtp.rules(layer, prefix)), mtp.copies(prefix)
    return WeightMapping(rules, num_layers, hf["n_routed_experts"], copies=copies)


SHAPES = {
    "input_layernorm.weight": HIDDEN_NORM,
    "pre_mlp_layernorm.weight": HIDDEN_NORM,
    "self_attention.linear_proj.post_layernorm.weight": HIDDEN_NORM,
    "mlp.linear_fc2.post_layernorm.weight": HIDDEN_NORM,
}
