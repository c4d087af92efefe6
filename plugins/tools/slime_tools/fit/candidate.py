"""Layouts as keys over a config, and the engines that `slime plan --fit` tries: sizes, and data-parallel attention."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime.algo.stages import run_stages
from slime.config.changes import Changes, in_words
from slime.config.schema import Role, SlimeConfig
from slime.errors import SlimeError
from slime.layout import Grid
from slime.topology.engines import EngineGroup
from slime_tools.memory.memory_plan import MemoryPlan
from slime_tools.publish.part import publish_links, publish_seconds

PUBLISH = "publish"


@dataclass(frozen=True)
class Candidate:
    """A layout that fits, unless it is the given one.

    Attributes:
        changes: of the given config; none if it is that one.
        seconds: of a rollout, by part.
        problems: of the given one, if it cannot be.
    """

    changes: Changes
    cfg: SlimeConfig
    grid: Grid
    seconds: Mapping[str, float]
    memory: MemoryPlan
    problems: Sequence[SlimeError] = ()

    @property
    def is_given(self) -> bool:
        return not self.changes

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def words(self) -> list[str]:
        """What to type behind the given words."""
        return in_words(self.changes)


def published(one: Candidate) -> Candidate:
    """With the seconds of a publish, where the layout can be and weights are published."""
    plan = one.memory
    if one.problems or not run_stages(plan.cfg).reinforces:
        return one
    seconds = publish_seconds(plan, publish_links(plan.topology, plan.weights, plan.model))
    return dataclasses.replace(one, seconds={**one.seconds, PUBLISH: seconds.total}) if seconds else one


LARGEST = 64
NARROWEST = 32
"""Columns of an expert that a rank holds: no kernel has a narrower tile, and would compute for nothing."""


def engine_changes(groups: Sequence[EngineGroup], model: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Keys over the given config, first none of them. Several groups, and pairs of roles, stay as they are."""
    yield {}
    if len(groups) != 1 or groups[0].role is not Role.regular:
        return
    (group,) = groups
    has_experts = bool(model.get("num_moe_experts"))
    # Caches that every tensor-parallel rank would hold whole gain by data-parallel attention.
    shares_attention = model.get("multi_latent_attention") or has_experts
    for size in (2**exponent for exponent in range(7)):
        if size > min(group.devices, LARGEST) or group.devices % size:
            continue
        is_split = has_experts and not group.spreads_experts and group.ep == 1
        if is_split and model["moe_ffn_hidden_size"] < NARROWEST * size:
            continue
        for attention in {1, min(size, group.attention_tp), size} if shares_attention else {size}:
            if model["num_attention_heads"] % attention == 0 and size % attention == 0:
                fields = _fields(group, model, size, size // attention)
                keys = {group.home_of(key): value for key, value in fields.items()}
                changes = {f"rollout.engines.{group.name}.devices_per_engine": size, **keys}
                if (size, size // attention) != (group.devices_per_engine, group.dp):
                    yield changes


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
