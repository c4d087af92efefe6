"""Grouped-query attention: keywords, names, shapes and costs. No torch."""

from __future__ import annotations

from typing import Any

from slime.models.blocks import BF16, Attention, BuildingBlock, Cache, RankTokens, Saved
from slime.models.bridge import HfConfig
from slime.models.config_reader import ConfigReader
from slime.models.mapping import Layout
from slime.models.rules import Rules, layer_rule
from slime.models.shapes import Block, Cut, Model, Shape


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
        "num_query_groups": reader.get("num_key_value_heads", None) or num_heads,
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
    return BLOCK.state(*linear_qkv, *(qk_norms if qk_norm else []), linear_proj)


def rules_of(hf: HfConfig, *, bias: bool = False, qk_norm: bool = False) -> Rules:
    """`rules` of a config.json, of as many key/value heads as query heads where it does not say."""
    num_heads = hf["num_attention_heads"]
    return rules(num_heads, hf["num_key_value_heads"] or num_heads, bias=bias, qk_norm=qk_norm)


def _qkv(model: Model) -> int:
    return int((model["num_attention_heads"] + 2 * model["num_query_groups"]) * model["kv_channels"])


def _engine_share(numel: float, model: Model, attention_tp: int) -> float:
    """A key/value head lies on every rank whose queries it serves."""
    heads, groups = model["num_attention_heads"], model["num_query_groups"]
    return float(numel / (heads + 2 * groups) * (heads / attention_tp + 2 * max(1, groups / attention_tp)))


_A, _WHOLE, _TENSOR = Block.attention, Cut.whole, Cut.tensor
SHAPES = {
    "self_attention.linear_qkv.weight": Shape(
        lambda m: (_qkv(m), m["hidden_size"]), _TENSOR, _A, engine_share=_engine_share
    ),
    "self_attention.linear_qkv.bias": Shape(lambda m: (_qkv(m),), _TENSOR, _A, engine_share=_engine_share),
    "self_attention.q_layernorm.weight": Shape(lambda m: (m["kv_channels"],), _WHOLE, _A),
    "self_attention.k_layernorm.weight": Shape(lambda m: (m["kv_channels"],), _WHOLE, _A),
    "self_attention.linear_proj.weight": Shape(
        lambda m: (m["hidden_size"], m["num_attention_heads"] * m["kv_channels"]), _TENSOR, _A
    ),
}


def _has_window(model: Model, layer: int) -> bool:
    """As Megatron-core's `is_layer_window_attention` says it, which counts layers from 1."""
    but = model.get("window_attn_skip_freq")
    if not model.get("window_size") or but is None:
        return bool(model.get("window_size"))
    return bool((layer + 1) % but if isinstance(but, int) else but[layer])


class _Attention(BuildingBlock):
    def saved(self, tokens: RankTokens) -> Saved:
        """`PackedSelfAttention`; with norms of queries and keys their inputs too."""
        model, tp = tokens.model, tokens.grid.tp
        heads, groups, size = model["num_attention_heads"] / tp, model["num_query_groups"] / tp, model["kv_channels"]
        kept, transient, _ = tokens.full_attention(heads, groups, size, size)
        norms = BF16 * (heads + 2 * groups) * size * tokens.rank_tokens if model.get("qk_layernorm") else 0
        return Saved(kept + norms, transient)

    def attention(self, model: Model, layer: int) -> Attention:
        """Scores and the mean of values, of every head; in some layers to a sliding window."""
        flops = float(2 * model["num_attention_heads"] * 2 * model["kv_channels"])
        return Attention(flops, model["window_size"][0] + 1) if _has_window(model, layer) else Attention(flops)

    def exchanged(self, model: Model, tp: int) -> float:
        """Keys and values of a rank's groups."""
        return float(BF16 * 2 * model["num_query_groups"] / tp * model["kv_channels"])

    def cache(self, model: Model, attention_tp: int, *, fp8: bool) -> Cache:
        """Keys and values of the groups on a rank, of one at least."""
        groups = max(1.0, model["num_query_groups"] / attention_tp)
        cell = groups * 2 * model["kv_channels"] * (1 if fp8 else 2)
        return Cache(cell, cell)


BLOCK = _Attention(SHAPES)
