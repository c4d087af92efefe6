"""The groups of equal engines that a run starts, with their sizes filled in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slime.config.schema import Device, EngineGroupConfig, Placement, Role, SlimeConfig
from slime.errors import SlimeError

DEFAULT = "default"
"""Name of the only group where `rollout.engines` names none."""


@dataclass(frozen=True)
class EngineGroup:
    """Equal engines.

    Attributes:
        devices: of all engines together.
        devices_per_engine: tp_size x pp_size.
        sglang: fields of ServerArgs by the user: `rollout.sglang` and over it the group's own, with `tp_size`.
        environment: variables by the user: the cluster's and over them the group's own.
    """

    name: str
    role: Role
    devices: int
    devices_per_engine: int
    sglang: Mapping[str, Any]
    environment: Mapping[str, str]

    @property
    def num_engines(self) -> int:
        return self.devices // self.devices_per_engine

    @property
    def tp(self) -> int:
        return int(self.sglang["tp_size"])

    @property
    def dp(self) -> int:
        """Data-parallel attention ranks that share an engine's requests; their graphs count requests a rank."""
        return int(self.sglang.get("dp_size", 1)) if self.sglang.get("enable_dp_attention") else 1

    @property
    def ep(self) -> int:
        """Ranks that an engine's experts are spread over."""
        return self.tp if self.spreads_experts else int(self.sglang.get("ep_size") or 1)

    @property
    def attention_tp(self) -> int:
        """Ranks that share the heads of one data-parallel attention rank."""
        return max(1, self.tp // self.dp)

    @property
    def spreads_experts(self) -> bool:
        """Whether an all-to-all exchanges tokens, for which SGLang makes `ep_size` equal to `tp_size`."""
        backends = ("deepep", "mooncake", "nixl", "mori", "flashinfer", "megamoe")
        return self.sglang.get("moe_a2a_backend") in backends


def in_words(variables: Mapping[str, Any]) -> dict[str, str]:
    """Values of YAML as an environment has them."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in variables.items()}


def generates(cfg: SlimeConfig) -> bool:
    """Whether the run ever samples: to learn from it, or to score the held-out prompts."""
    return cfg.algo.name != "sft" or cfg.eval.path is not None


def works_in_pairs(cfg: SlimeConfig) -> bool:
    """Whether engines of two roles answer each request together."""
    return any(group.role is not Role.regular for group in engine_groups(cfg))


def engine_groups(cfg: SlimeConfig) -> tuple[EngineGroup, ...]:
    """The groups in the order of the config; none if the run never generates.

    Raises:
        SlimeError: a size is missing, contradicts another, or does not divide.
    """
    if not generates(cfg):
        return ()
    configured = cfg.rollout.engines or {DEFAULT: EngineGroupConfig()}
    return tuple(_group(cfg, name, group, alone=len(configured) == 1) for name, group in configured.items())


def num_engines(cfg: SlimeConfig) -> int:
    """Engines of all groups."""
    return sum(group.num_engines for group in engine_groups(cfg))


def home_of(cfg: SlimeConfig, group: str, key: str) -> str:
    """The config key that gives a group's SGLang field: the group's own, or that of all."""
    own = cfg.rollout.engines.get(group)
    return f"rollout.engines.{group}.sglang.{key}" if own and key in own.sglang else f"rollout.sglang.{key}"


def with_sizes(cfg: SlimeConfig) -> dict[str, EngineGroupConfig]:
    """`rollout.engines` with every group and size in place, for the resolved config."""
    configured = cfg.rollout.engines or {DEFAULT: EngineGroupConfig()}
    return {
        group.name: dataclasses.replace(
            configured[group.name], devices=group.devices, devices_per_engine=group.devices_per_engine
        )
        for group in engine_groups(cfg)
    } or cfg.rollout.engines


def _group(cfg: SlimeConfig, name: str, group: EngineGroupConfig, *, alone: bool) -> EngineGroup:
    where = f"rollout.engines.{name}"
    sglang = {**cfg.rollout.sglang, **group.sglang}
    per_engine = _devices_per_engine(where, group, sglang)
    devices = group.devices
    if devices is None:
        if not alone:
            raise SlimeError("is not set, and there are several groups", where=f"{where}.devices", todo="Set it.")
        devices = _all_devices(cfg, per_engine)
    if devices < 1 or devices % per_engine:
        below = max(devices, 0) // per_engine * per_engine
        above = below + per_engine
        raise SlimeError(
            f"{devices} devices cannot be divided into engines of {per_engine}",
            where=f"{where}.devices",
            todo=f"Set it to {above}{f' or {below}' if below else ''}, or change {where}.devices_per_engine.",
        )
    environment = in_words({**cfg.cluster.environment, **group.environment})
    sglang["tp_size"] = per_engine // (size(sglang, "pp_size") or 1)
    return EngineGroup(name, group.role, devices, per_engine, sglang, environment)


def _devices_per_engine(where: str, group: EngineGroupConfig, sglang: Mapping[str, Any]) -> int:
    """`devices_per_engine`, or what `tp_size` x `pp_size` give; the two must agree."""
    pp_size, tp_size = size(sglang, "pp_size") or 1, size(sglang, "tp_size")
    if group.devices_per_engine is None:
        return (tp_size or 1) * pp_size
    if group.devices_per_engine < 1 or group.devices_per_engine % pp_size:
        todo = f"Choose a multiple of rollout.sglang.pp_size={pp_size}."
        raise SlimeError(f"is {group.devices_per_engine}", where=f"{where}.devices_per_engine", todo=todo)
    if tp_size is not None and tp_size * pp_size != group.devices_per_engine:
        raise SlimeError(
            f"is {group.devices_per_engine}, but tp_size {tp_size} x pp_size {pp_size} make {tp_size * pp_size}",
            where=f"{where}.devices_per_engine",
            todo="Remove it, or remove tp_size.",
        )
    return group.devices_per_engine


def size(sglang: Mapping[str, Any], key: str) -> int | None:
    """A size among SGLang's fields; None while it is unset or no positive number (which `check` reports)."""
    value = sglang.get(key)
    return value if isinstance(value, int) and value > 0 else None


def _all_devices(cfg: SlimeConfig, per_engine: int) -> int:
    cluster = cfg.cluster
    if cluster.device is Device.cpu:
        return per_engine
    if cluster.placement is Placement.colocated:
        return cluster.num_trainers
    have = cluster.num_nodes * cluster.devices_per_node
    if cluster.num_trainers >= have:
        todo = "Lower it, raise cluster.num_nodes, or set cluster.placement=colocated."
        raise SlimeError(f"leaves none of {have} devices to engines", where="cluster.num_trainers", todo=todo)
    return have - cluster.num_trainers


def group_problems(cfg: SlimeConfig) -> Iterator[SlimeError]:
    """What is wrong with the groups as such: their sizes, and roles that need each other."""
    try:
        groups = engine_groups(cfg)
    except SlimeError as problem:
        yield problem
        return
    roles = {group.role for group in groups}
    where = "rollout.engines"
    if Role.regular in roles and len(roles) > 1:
        todo = "Make all groups regular, or give each the role prefill or decode."
        yield SlimeError("mixes regular engines with prefill or decode engines", where=where, todo=todo)
    for role, other in ((Role.prefill, Role.decode), (Role.decode, Role.prefill)):
        if role in roles and other not in roles:
            yield SlimeError(f"has {role.name} engines but none to {other.name}", where=where, todo="Add such a group.")
