"""Pre-norm decoders: keywords, the norms, and the table of a whole model. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slime.models.blocks import BF16, BuildingBlock, RankTokens, Saved
from slime.models.bridge import HfConfig
from slime.models.config_reader import ConfigReader
from slime.models.rules import Rules, layer_rule
from slime.models.shapes import HIDDEN_NORM, Shape
from slime_megatron.transformer import embeddings, output


def keywords(reader: ConfigReader, *, normalization: str = "RMSNorm", epsilon: str = "rms_norm_eps") -> dict[str, Any]:
    """Sizes and norms of a pre-norm decoder with a SiLU-gated MLP.

    Args:
        normalization: Megatron-core's word for the norm, of which specs have the module (`norm=`).
        epsilon: the field of config.json with the norm's epsilon.
    """
    reader.only("attention_dropout", 0, 0.0)
    return {
        "num_layers": reader.get("num_hidden_layers"),
        "hidden_size": reader.get("hidden_size"),
        "ffn_hidden_size": reader.get("intermediate_size"),
        "activation_func": reader.only("hidden_act", "silu"),
        "gated_linear_unit": True,
        "add_bias_linear": False,
        "normalization": normalization,
        "layernorm_epsilon": reader.get(epsilon),
        "init_method_std": reader.get("initializer_range", 0.02),
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }


def rules(hf: HfConfig, attention: Rules, mlp: Rules, norms: Rules = ()) -> Rules:
    """The table of a decoder; `norms` are those of its layers, where they have other names than in most checkpoints."""
    return (
        *embeddings.rules(hf["vocab_size"]),
        *(norms or norm_rules()),
        *attention,
        *mlp,
        *output.rules(hf["vocab_size"], tied=hf.get("tie_word_embeddings", False)),
    )


def norm_rules(
    attention: str = "input_layernorm", mlp: str = "post_attention_layernorm", *, bias: bool = False
) -> Rules:
    """The norms before attention and before the MLP, by their names in the checkpoint; with biases where `bias`."""
    return NORMS.state(*_rules(dict(zip(_BEFORE, (attention, mlp), strict=True)), bias))


def post_norm_rules(
    attention: str = "post_self_attn_layernorm", mlp: str = "post_mlp_layernorm", *, bias: bool = False
) -> Rules:
    """The norms on the outputs of attention and MLP (specs with `post_norm=True`), by their names in the checkpoint."""
    return POST_NORMS.state(*_rules(dict(zip(_BEHIND, (attention, mlp), strict=True)), bias))


def _rules(names: Mapping[str, str], bias: bool) -> Rules:
    kinds = _PARAMETERS if bias else _PARAMETERS[:1]
    return tuple(layer_rule(f"{megatron}.{kind}", f"{hf}.{kind}") for megatron, hf in names.items() for kind in kinds)


def _shapes(norms: Sequence[str]) -> dict[str, Shape]:
    return {f"{norm}.{kind}": HIDDEN_NORM for norm in norms for kind in _PARAMETERS}


class _PostNorms(BuildingBlock):
    def saved(self, tokens: RankTokens) -> Saved:
        """The outputs of attention and MLP. What all other norms keep is counted with the layer."""
        return Saved(2 * BF16 * tokens.model["hidden_size"] * tokens.shard)


_PARAMETERS = ("weight", "bias")
_BEFORE = ("input_layernorm", "pre_mlp_layernorm")
_BEHIND = ("self_attention.linear_proj.post_layernorm", "mlp.linear_fc2.post_layernorm")
NORMS = BuildingBlock(_shapes(_BEFORE))
POST_NORMS = _PostNorms(_shapes(_BEHIND))
