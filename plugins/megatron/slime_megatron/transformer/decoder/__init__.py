"""Pre-norm decoder layers: keywords and the norms. No torch."""

from __future__ import annotations

from typing import Any

from slime.models.blocks import BF16, BuildingBlock, RankTokens, Saved
from slime.models.config_reader import ConfigReader
from slime.models.rules import Rules, layer_rule
from slime.models.shapes import HIDDEN_NORM


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


def norm_rules(attention: str = "input_layernorm", mlp: str = "post_attention_layernorm") -> Rules:
    """The norms before attention and before the MLP, by their names in the checkpoint."""
    return NORMS.state(
        layer_rule("input_layernorm.weight", f"{attention}.weight"),
        layer_rule("pre_mlp_layernorm.weight", f"{mlp}.weight"),
    )


def post_norm_rules(attention: str = "post_self_attn_layernorm", mlp: str = "post_mlp_layernorm") -> Rules:
    """The norms on the outputs of attention and MLP (specs with `post_norm=True`), by their names in the checkpoint."""
    return POST_NORMS.state(
        layer_rule("self_attention.linear_proj.post_layernorm.weight", f"{attention}.weight"),
        layer_rule("mlp.linear_fc2.post_layernorm.weight", f"{mlp}.weight"),
    )


class _PostNorms(BuildingBlock):
    def saved(self, tokens: RankTokens) -> Saved:
        """The outputs of attention and MLP. What all other norms keep is counted with the layer."""
        return Saved(2 * BF16 * tokens.model["hidden_size"] * tokens.shard)


NORMS = BuildingBlock(dict.fromkeys(("input_layernorm.weight", "pre_mlp_layernorm.weight"), HIDDEN_NORM))
POST_NORMS = _PostNorms(
    dict.fromkeys(
        ("self_attention.linear_proj.post_layernorm.weight", "mlp.linear_fc2.post_layernorm.weight"), HIDDEN_NORM
    )
)
