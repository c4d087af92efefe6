"""Where the matrices of an engine's rank come out in whole FP8 blocks, which SGLang's `quantization/fp8.py` demands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime.errors import SlimeError
from slime.topology.engines import EngineGroup


def problems(
    group: EngineGroup, model: Mapping[str, Any], block: int, quantizes: Callable[[str, Sequence[int]], bool]
) -> Iterator[SlimeError]:
    """Slices of matrices without whole blocks, where each part counts of those that SGLang fuses; and kernels without
    FP8. `quantizes`: whether a weight of this name and shape is in FP8."""
    for part in _parts(group, model):
        if not quantizes(f"model.layers.0.{part.module}.weight", (1, 1)):
            continue
        ranks = max(1, part.ranks)
        if part.size % block == 0 and part.size % ranks == 0 and part.size // ranks % block == 0:
            continue
        todo = f"Name a folder whose quantization_config leaves out '{part.module.split('.')[0]}', or rollout.fp8=null."
        if part.size % block == 0 and part.todo:
            todo = part.todo
        over = f" over {ranks} ranks" if ranks > 1 else ""
        what = f"{part.name} of {part.size} {part.unit}{over} have no whole FP8 blocks of {block}"
        yield SlimeError(what, where=group.home_of(part.key), todo=todo)
    yield from _kernels(group, model)


def _kernels(group: EngineGroup, model: Mapping[str, Any]) -> Iterator[SlimeError]:
    key = "moe_runner_backend"
    backend = group.sglang.get(key, "auto")
    if backend == "cutlass" and group.ep > 1:
        what = f"is cutlass, which takes FP8 experts only where ep_size is 1, not {group.ep}"
        yield SlimeError(what, where=group.home_of(key), todo="Remove it, and SGLang chooses.")
    sends = group.sglang.get("moe_a2a_backend") == "deepep" and model.get("num_moe_experts")
    if sends and backend not in ("auto", "deep_gemm"):
        what = f"is {backend}, but FP8 experts behind deepep are deep_gemm's"
        yield SlimeError(what, where=group.home_of(key), todo="Use deep_gemm, or remove it.")


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


def _parts(group: EngineGroup, model: Mapping[str, Any]) -> Iterator[_Part]:
    if columns := model.get("moe_ffn_hidden_size"):
        ranks, todo = group.tp // group.ep, f"Set it to {group.tp}."
        yield _Part("experts", columns, "columns", ranks, "mlp.experts.0.up_proj", "ep_size", todo)
    if columns := model.get("moe_shared_expert_intermediate_size"):
        ranks, todo = 1 if group.spreads_experts else group.tp, "Set it to deepep, which keeps it whole."
        yield _Part(
            "the shared expert", columns, "columns", ranks, "mlp.shared_experts.up_proj", "moe_a2a_backend", todo
        )
    if _has_dense(model):
        ranks, key, todo = group.tp, "tp_size", "Use fewer ranks."
        if model.get("num_moe_experts"):  # other models do not look at moe_dense_tp_size
            ranks, key, todo = group.sglang.get("moe_dense_tp_size") or group.tp, "moe_dense_tp_size", "Set it to 1."
        yield _Part("dense layers", model["ffn_hidden_size"], "columns", ranks, "mlp.up_proj", key, todo)
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
