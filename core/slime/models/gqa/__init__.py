"""Grouped-query attention: keywords, names and shapes. No torch."""

from __future__ import annotations

from typing import Any

from slime.models.config_reader import ConfigReader
from slime.models.rules import Rules, layer_rule
from slime.models.shapes import Block, Cut, Model, Shape
from slime.weights.megatron.mapping import Layout


def keywords(reader: ConfigReader, *, bias: bool, qk_norm: bool, rotary_interleaved: bool) -> dict[str, Any]:
    """Grouped-query attention.

    Args:
        bias: biases on the query, key and value projections.
        qk_norm: RMSNorm on each query and key head.
        rotary_interleaved: rotate neighbouring dimensions (GPT-J) instead of the two halves (GPT-NeoX).
    """
    num_heads = reader.get("num_attention_heads")
    return {
        "num_attention_heads": num_heads,
        "num_query_groups": reader.get("num_key_value_heads", num_heads),
        "kv_channels": reader.get("head_dim", None) or reader.get("hidden_size") // num_heads,
        "add_qkv_bias": bias,
        "qk_layernorm": qk_norm,
        "rotary_interleaved": rotary_interleaved,
    }


def rules(num_heads: int, num_kv_heads: int, *, bias: bool = False, qk_norm: bool = False) -> Rules:
    """Grouped-query attention; Megatron keeps each key/value head behind the query heads that it serves."""
    per_group = Layout(parts=(num_heads // num_kv_heads, 1, 1), num_units=num_kv_heads)
    linear_qkv = [
        layer_rule(
            f"self_attention.linear_qkv.{kind}", *(f"self_attn.{x}_proj.{kind}" for x in "qkv"), layout=per_group
        )
        for kind in (["weight", "bias"] if bias else ["weight"])
    ]
    qk_norms = [layer_rule(f"self_attention.{x}_layernorm.weight", f"self_attn.{x}_norm.weight") for x in "qk"]
    linear_proj = layer_rule("self_attention.linear_proj.weight", "self_attn.o_proj.weight")
    return (*linear_qkv, *(qk_norms if qk_norm else []), linear_proj)


def _qkv(model: Model) -> int:
    return int((model["num_attention_heads"] + 2 * model["num_query_groups"]) * model["kv_channels"])


_A, _WHOLE, _TENSOR = Block.attention, Cut.whole, Cut.tensor
SHAPES = {
    "self_attention.linear_qkv.weight": Shape(lambda m: (_qkv(m), m["hidden_size"]), _TENSOR, _A),
    "self_attention.linear_qkv.bias": Shape(lambda m: (_qkv(m),), _TENSOR, _A),
    "self_attention.q_layernorm.weight": Shape(lambda m: (m["kv_channels"],), _WHOLE, _A),
    "self_attention.k_layernorm.weight": Shape(lambda m: (m["kv_channels"],), _WHOLE, _A),
    "self_attention.linear_proj.weight": Shape(
        lambda m: (m["hidden_size"], m["num_attention_heads"] * m["kv_channels"]), _TENSOR, _A
    ),
}
