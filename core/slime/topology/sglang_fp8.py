"""Where the matrices of an engine's rank come out in whole FP8 blocks, which SGLang's `quantization/fp8.py` demands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slime.config.fp8 import BLOCK
from slime.errors import SlimeError
from slime.topology.fp8 import rollout_format
from slime.topology.sglang_asked import Asked


def fp8_problems(asked: Asked) -> Iterator[SlimeError]:
    """Every rank's slice of a matrix has whole blocks, and so has each part of those that SGLang fuses."""
    if asked.cfg.rollout.fp8 is None:
        return
    try:
        fp8 = rollout_format(asked.cfg)
    except SlimeError as problem:
        yield problem
        return
    assert fp8
    for part in _parts(asked):
        if not fp8.quantizes(f"model.layers.0.{part.module}.weight", (1, 1)):
            continue
        ranks = max(1, part.ranks)
        if part.size % BLOCK == 0 and part.size % ranks == 0 and part.size // ranks % BLOCK == 0:
            continue
        todo = f"Name a folder whose quantization_config leaves out '{part.module.split('.')[0]}', or rollout.fp8=null."
        if part.size % BLOCK == 0 and part.todo:
            todo = part.todo
        over = f" over {ranks} ranks" if ranks > 1 else ""
        what = f"{part.name} of {part.size} {part.unit}{over} have no whole FP8 blocks of {BLOCK}"
        yield asked.problem(part.key, what, todo)


@dataclass(frozen=True)
class _Part:
    """Rows or columns that must come out in whole blocks on each of `ranks`."""

    name: str
    size: int
    unit: str
    ranks: int
    module: str
    key: str
    todo: str = ""


def _parts(asked: Asked) -> Iterator[_Part]:
    model, group = asked.model, asked.group
    if columns := model.get("moe_ffn_hidden_size"):
        ranks, todo = group.tp // group.ep, f"Set ep_size={group.tp}."
        yield _Part("experts", columns, "columns", ranks, "mlp.experts.0.up_proj", "ep_size", todo)
    if columns := model.get("moe_shared_expert_intermediate_size"):
        ranks, todo = 1 if group.spreads_experts else group.tp, "Use moe_a2a_backend=deepep, which keeps it whole."
        yield _Part(
            "the shared expert", columns, "columns", ranks, "mlp.shared_experts.up_proj", "moe_a2a_backend", todo
        )
    if _has_dense(model):
        ranks, todo = asked.get("moe_dense_tp_size") or group.tp, "Set moe_dense_tp_size=1."
        yield _Part(
            "dense layers", model["ffn_hidden_size"], "columns", ranks, "mlp.up_proj", "moe_dense_tp_size", todo
        )
    heads, tp = model["num_attention_heads"], group.attention_tp
    wider = "Use fewer ranks, or more dp_size with enable_dp_attention."
    if not model.get("multi_latent_attention"):
        size, groups = model["kv_channels"], model["num_query_groups"]
        yield _Part("queries", heads * size, "rows", tp, "self_attn.q_proj", "tp_size", wider)
        yield _Part("keys", max(groups, tp) * size, "rows", tp, "self_attn.k_proj", "tp_size", wider)
        return
    if low := model.get("q_lora_rank"):  # SGLang lays its scales before those of the keys' projection
        yield _Part("latent queries", low, "rows", 1, "self_attn.q_a_proj", "tp_size")
    if tp > 1:
        of_head = {
            "q_b_proj": model["qk_head_dim"] + model["qk_pos_emb_head_dim"],
            "kv_b_proj": model["qk_head_dim"] + model["v_head_dim"],
            "o_proj": model["v_head_dim"],
        }
        for name, size in of_head.items():
            yield _Part("heads", heads * size, "rows", tp, f"self_attn.{name}", "tp_size", wider)


def _has_dense(model: Mapping[str, Any]) -> bool:
    layers = model.get("moe_layer_freq")
    return not model.get("num_moe_experts") or (isinstance(layers, list) and 0 in layers)
