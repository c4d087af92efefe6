"""Multi-head latent attention: keywords, names, shapes and costs. No torch."""

from __future__ import annotations

from typing import Any

from slime.models.blocks import BF16, Attention, BuildingBlock, Cache, RankTokens, Saved
from slime.models.config_reader import ConfigReader
from slime.models.rules import Rules, layer_rule
from slime.models.shapes import Block, Cut, Model, Shape
from slime_megatron.transformer.rotary import rope_parameters, trained_for


def keywords(reader: ConfigReader) -> dict[str, Any]:
    """Multi-head latent attention (arXiv 2405.04434, section 2.1); rotary embeddings plain or scaled by YaRN.

    Every norm uses `rms_norm_eps`, as the engine's do.
    """
    num_heads = reader.get("num_attention_heads")
    reader.only("num_key_value_heads", num_heads, None)
    reader.only("attention_bias", False)
    reader.only("rope_interleave", True)
    plain, rotated = reader.get("qk_nope_head_dim"), reader.get("qk_rope_head_dim")
    reader.only("qk_head_dim", plain + rotated, None)
    reader.skip("head_dim")
    return {
        "multi_latent_attention": True,
        "num_attention_heads": num_heads,
        "q_lora_rank": reader.get("q_lora_rank", None),
        "kv_lora_rank": reader.get("kv_lora_rank"),
        "qk_head_dim": plain,
        "qk_pos_emb_head_dim": rotated,
        "v_head_dim": reader.get("v_head_dim"),
        "qk_layernorm": True,
        **_latent_rotary(reader),
    }


def _latent_rotary(reader: ConfigReader) -> dict[str, Any]:
    parameters, kind, base = rope_parameters(reader, "default", "yarn")
    reader.only("partial_rotary_factor", 1.0)
    parameters.only("partial_rotary_factor", 1.0)
    if kind == "default":
        return {"rope_type": "rope", "rotary_base": base}
    parameters.only("truncate", True)
    mscale, mscale_all_dim = parameters.get("mscale", None), parameters.get("mscale_all_dim", 0.0)
    if not (mscale and mscale_all_dim) and (mscale_all_dim or mscale not in (None, 1.0)):
        why = f"Beside 'mscale_all_dim: {mscale_all_dim}' engines and trainer read it differently."
        parameters.refuse("mscale", mscale, why)
    return {
        "rope_type": "yarn",
        "rotary_base": base,
        "rotary_scaling_factor": parameters.get("factor"),
        "original_max_position_embeddings": trained_for(reader, parameters),
        "beta_fast": parameters.get("beta_fast", 32),
        "beta_slow": parameters.get("beta_slow", 1),
        "mscale": 1.0 if mscale is None else mscale,
        "mscale_all_dim": mscale_all_dim,
    }


def rules(*, q_lora: bool = True) -> Rules:
    """Multi-head latent attention; `q_lora` says that queries have a low-rank projection of their own.

    The second of its two down projections follows the first: SGLang wants them in one bucket
    (`weight_buckets.bucket`).
    """
    names = {
        **({"linear_q_down_proj": "q_a_proj"} if q_lora else {"linear_q_proj": "q_proj"}),
        "linear_kv_down_proj": "kv_a_proj_with_mqa",
        **({"q_layernorm": "q_a_layernorm", "linear_q_up_proj": "q_b_proj"} if q_lora else {}),
        "kv_layernorm": "kv_a_layernorm",
        "linear_kv_up_proj": "kv_b_proj",
        "linear_proj": "o_proj",
    }
    return BLOCK.state(
        *(layer_rule(f"self_attention.{ours}.weight", f"self_attn.{hf}.weight") for ours, hf in names.items())
    )


def _query_size(model: Model) -> int:
    """Of all heads, both parts."""
    return int(model["num_attention_heads"] * (model["qk_head_dim"] + model["qk_pos_emb_head_dim"]))


_A, _WHOLE, _TENSOR = Block.attention, Cut.whole, Cut.tensor
SHAPES = {
    "self_attention.linear_q_proj.weight": Shape(lambda m: (_query_size(m), m["hidden_size"]), _TENSOR, _A),
    "self_attention.linear_q_down_proj.weight": Shape(lambda m: (m["q_lora_rank"], m["hidden_size"]), _WHOLE, _A),
    "self_attention.q_layernorm.weight": Shape(lambda m: (m["q_lora_rank"],), _WHOLE, _A),
    "self_attention.linear_q_up_proj.weight": Shape(lambda m: (_query_size(m), m["q_lora_rank"]), _TENSOR, _A),
    "self_attention.linear_kv_down_proj.weight": Shape(
        lambda m: (m["kv_lora_rank"] + m["qk_pos_emb_head_dim"], m["hidden_size"]), _WHOLE, _A
    ),
    "self_attention.kv_layernorm.weight": Shape(lambda m: (m["kv_lora_rank"],), _WHOLE, _A),
    "self_attention.linear_kv_up_proj.weight": Shape(
        lambda m: (m["num_attention_heads"] * (m["qk_head_dim"] + m["v_head_dim"]), m["kv_lora_rank"]),
        _TENSOR,
        _A,
        absorbed=True,
    ),
    "self_attention.linear_proj.weight": Shape(
        lambda m: (m["hidden_size"], m["num_attention_heads"] * m["v_head_dim"]), _TENSOR, _A
    ),
}


def compressed(tokens: RankTokens) -> float:
    """Bytes of compressed queries and latents, before their norms and after."""
    model = tokens.model
    latents = 2 * (model["q_lora_rank"] or 0) + 2 * int(model["kv_lora_rank"]) + int(model["qk_pos_emb_head_dim"])
    return float(BF16 * tokens.shard * latents)


def latent_cell(model: Model, *, fp8: bool) -> int:
    """Bytes of a token's latent with its rotary part."""
    return int((model["kv_lora_rank"] + model["qk_pos_emb_head_dim"]) * (1 if fp8 else 2))


def _of_a_head(model: Model) -> int:
    """Sizes of a key and a value together."""
    return int(model["qk_head_dim"] + model["qk_pos_emb_head_dim"] + model["v_head_dim"])


class _Attention(BuildingBlock):
    def saved(self, tokens: RankTokens) -> Saved:
        """`PackedLatentAttention`: every head has keys and values of its own."""
        model = tokens.model
        heads = model["num_attention_heads"] / tokens.grid.tp
        size = model["qk_head_dim"] + model["qk_pos_emb_head_dim"]
        core, transient, _ = tokens.full_attention(heads, heads, size, model["v_head_dim"])
        if "mla_up_proj" in tokens.recomputed:
            core = BF16 * heads * model["v_head_dim"] * tokens.rank_tokens
        return Saved(compressed(tokens) + core, transient)

    def attention(self, model: Model, layer: int) -> Attention:
        """Scores and the mean of values, of every head."""
        return Attention(float(2 * model["num_attention_heads"] * _of_a_head(model)))

    def exchanged(self, model: Model, tp: int) -> float:
        """Keys and values of a rank's heads."""
        return float(BF16 * model["num_attention_heads"] / tp * _of_a_head(model))

    def cache(self, model: Model, attention_tp: int, *, fp8: bool) -> Cache:
        """Latents, whole on every rank."""
        cell = latent_cell(model, fp8=fp8)
        return Cache(cell, cell)


BLOCK = _Attention(SHAPES)
