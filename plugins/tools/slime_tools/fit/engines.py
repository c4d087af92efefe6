"""Engines that `slime plan --fit` tries: sizes, and whether data-parallel ranks share the attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slime.config.schema import Role
from slime.topology.engines import EngineGroup

LARGEST = 64
NARROWEST = 32
"""Columns of an expert that a rank holds: no kernel has a narrower tile, and would compute for nothing."""


def engine_changes(groups: Sequence[EngineGroup], model: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Keys over the given config, first none of them. Several groups, and pairs of roles, stay as they are."""
    yield {}
    if len(groups) != 1 or groups[0].role is not Role.regular:
        return
    (group,) = groups
    sizes = [2**exponent for exponent in range(7)]
    for size in sizes:
        if size > min(group.devices, LARGEST) or group.devices % size:
            continue
        if not group.spreads_experts and group.ep == 1 and _expert_width(model) < NARROWEST * size:
            continue
        for attention in {1, min(size, group.attention_tp), size} if _shares_attention(model) else {size}:
            if model["num_attention_heads"] % attention == 0 and size % attention == 0:
                fields = _fields(group, model, size, size // attention)
                keys = {group.home_of(key): value for key, value in fields.items()}
                changes = {f"rollout.engines.{group.name}.devices_per_engine": size, **keys}
                if (size, size // attention) != (group.devices_per_engine, group.dp):
                    yield changes


def _expert_width(model: Mapping[str, Any]) -> float:
    return float(model["moe_ffn_hidden_size"] if model.get("num_moe_experts") else "inf")


def _shares_attention(model: Mapping[str, Any]) -> bool:
    """Models whose caches every tensor-parallel rank would hold whole gain by data-parallel attention."""
    return bool(model.get("multi_latent_attention") or model.get("num_moe_experts"))


def _fields(group: EngineGroup, model: Mapping[str, Any], size: int, dp: int) -> dict[str, Any]:
    """SGLang's fields that change with the size, as far as they are set or needed."""
    given, fields = group.sglang, dict[str, Any]()
    wide = dp > 1
    if wide or given.get("enable_dp_attention"):
        fields |= {"dp_size": dp, "enable_dp_attention": wide, "enable_dp_lm_head": wide}
    if model.get("num_moe_experts") and (wide or given.get("moe_dense_tp_size") is not None):
        fields["moe_dense_tp_size"] = 1 if wide else None
    if given.get("ep_size") is not None or group.spreads_experts:
        fields["ep_size"] = size
    if requests := given.get("max_running_requests"):
        fields["max_running_requests"] = max(1, requests // group.dp) * dp
    return fields
