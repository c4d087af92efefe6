"""The groups of equal engines that a run starts, with their sizes filled in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from slime.algo.stages import reinforces
from slime.config.schema import (
    AlgoConfig,
    ClusterConfig,
    EngineGroupConfig,
    EvalConfig,
    ModelConfig,
    Role,
    RolloutConfig,
)
from slime.errors import SlimeError

FP32_HEAD = "enable_fp32_lm_head"
"""SGLang's field that engines get by `model.fp32_lm_head`."""
BATCH_INVARIANT = "SLIME_BATCH_INVARIANT"
"""Variable that engines get by `model.batch_invariant`."""
DEFAULT = "default"
"""Name of the only group that samples where `rollout.engines` names none."""
MAX_IMBALANCE = 8
"""Requests one of several engines may have more than another (`slime.engine_client.engine_set`)."""


@dataclass(frozen=True)
class EngineGroup:
    """Equal engines.

    Attributes:
        devices: of all engines together.
        devices_per_engine: tp_size x pp_size.
        sglang: fields of ServerArgs by the user: `rollout.sglang` and over it the group's own, with `tp_size`, and with
            `FP32_HEAD` where engines of the trained model need it.
        environment: variables by the user: the cluster's and over them the group's own.
        most_requests: that one of the engines has at once. `EngineSet` may give one engine more than another.
        own_fields: those of `sglang` that the group itself sets.
        model: HF folder of a model of its own, whose weights its engines load and keep; None: the trained model.
    """

    name: str
    role: Role
    devices: int
    devices_per_engine: int
    sglang: Mapping[str, Any]
    environment: Mapping[str, str]
    most_requests: int
    own_fields: frozenset[str] = frozenset()
    model: str | None = None

    def home_of(self, key: str) -> str:
        """The config key that gives one of SGLang's fields: the group's own, or that of all groups."""
        return f"rollout.engines.{self.name}.sglang.{key}" if key in self.own_fields else f"rollout.sglang.{key}"

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


def generates(algo: AlgoConfig, evaluation: EvalConfig) -> bool:
    return reinforces(algo) or evaluation.path is not None


def sampling_groups(rollout: RolloutConfig) -> dict[str, EngineGroupConfig]:
    """The groups of `rollout.engines` that have the trained model; the others are frozen."""
    return {name: group for name, group in rollout.engines.items() if group.model is None}


def frozen_groups(cluster: ClusterConfig, rollout: RolloutConfig, *, generates: bool) -> tuple[EngineGroup, ...]:
    """The groups that have models of their own, in the order of the config; none unless the run `generates`. One that
    does not say how many devices it has is one engine.

    Raises:
        SlimeError: a size contradicts another, or does not divide; a role is not regular, or the name is taken.
    """
    frozen = {name: group for name, group in rollout.engines.items() if group.model is not None}
    for name, group in frozen.items():
        if name == DEFAULT:
            todo = "Call it 'judge', for instance."
            what = "is the name of a group that samples, and this one has a model of its own"
            raise SlimeError(what, where=f"rollout.engines.{name}", todo=todo)
        if group.role is not Role.regular:
            todo = "Remove it, or remove the group's model."
            what = f"is {group.role.name}, but engines that have a model of their own do not work in pairs"
            raise SlimeError(what, where=f"rollout.engines.{name}.role", todo=todo)
    if not generates:
        return ()
    return tuple(_group(cluster, rollout, name, group, lambda per_engine: per_engine) for name, group in frozen.items())


def engine_groups(
    cluster: ClusterConfig, rollout: RolloutConfig, model: ModelConfig, megatron: Mapping[str, Any], others: int
) -> tuple[EngineGroup, ...]:
    """The groups that sample, in the order of the config; `others`: devices of frozen engines.

    Raises:
        SlimeError: a size is missing, contradicts another, or does not divide.
    """
    configured = sampling_groups(rollout) or {DEFAULT: EngineGroupConfig()}
    everything = partial(_all_devices, cluster, others) if len(configured) == 1 else None
    groups = [_group(cluster, rollout, name, group, everything) for name, group in configured.items()]
    if sum(group.num_engines for group in groups) > 1 and not work_in_pairs(groups):
        groups = [dataclasses.replace(group, most_requests=group.most_requests + MAX_IMBALANCE) for group in groups]
    if model.fp32_lm_head:
        groups = [dataclasses.replace(group, sglang={FP32_HEAD: True, **group.sglang}) for group in groups]
    if model.batch_invariant:
        fields, told = invariant_fields(cluster, megatron), {BATCH_INVARIANT: "1"}
        groups = [
            dataclasses.replace(group, sglang={**fields, **group.sglang}, environment={**told, **group.environment})
            for group in groups
        ]
    return tuple(groups)


def invariant_fields(cluster: ClusterConfig, megatron: Mapping[str, Any]) -> dict[str, Any]:
    """SGLang's fields that engines get by `model.batch_invariant`, and must not have otherwise."""
    bf16 = megatron.get("bf16", cluster.on_gpus)
    fields = {"enable_deterministic_inference": True, "dtype": "bfloat16" if bf16 else "float32"}
    if not cluster.on_gpus:
        return fields | {"attention_backend": "torch_native"}
    fields |= {"moe_runner_backend": "triton", "disable_shared_experts_fusion": True}  # weights lie as they are read
    return fields | {"attention_backend": "triton", "cuda_graph_backend_prefill": "disabled"}


def _group(
    cluster: ClusterConfig,
    rollout: RolloutConfig,
    name: str,
    group: EngineGroupConfig,
    unset: Callable[[int], int] | None,
) -> EngineGroup:
    """One group; `unset`: how many devices it has if it does not say so, of those of one engine; None: it has to."""
    sglang, where = {**rollout.sglang, **group.sglang}, f"rollout.engines.{name}"
    per_engine, devices = _devices_per_engine(where, group, sglang), group.devices
    if devices is None:
        if unset is None:
            raise SlimeError("is not set, and there are several groups", where=f"{where}.devices", todo="Set it.")
        devices = unset(per_engine)
    if devices < 1 or devices % per_engine:
        below = max(devices, 0) // per_engine * per_engine
        sizes = f"{below + per_engine}{f' or {below}' if below else ''}"
        what = f"{devices} devices cannot be divided into engines of {per_engine}"
        todo = f"Set it to {sizes}, or change {where}.devices_per_engine."
        raise SlimeError(what, where=f"{where}.devices", todo=todo)
    sglang["tp_size"] = per_engine // (size(sglang, "pp_size") or 1)
    environment = in_words({**cluster.environment, **group.environment})
    most, own = rollout.max_requests_per_engine, frozenset(group.sglang)
    return EngineGroup(name, group.role, devices, per_engine, sglang, environment, most, own, group.model)


def work_in_pairs(groups: Iterable[EngineGroup]) -> bool:
    return any(group.role is not Role.regular for group in groups)


def with_sizes(
    configured: Mapping[str, EngineGroupConfig], groups: Iterable[EngineGroup]
) -> dict[str, EngineGroupConfig]:
    """`rollout.engines` with every group and size in place, for the resolved config."""
    return {
        group.name: dataclasses.replace(
            configured.get(group.name, EngineGroupConfig()),
            devices=group.devices,
            devices_per_engine=group.devices_per_engine,
        )
        for group in groups
    }


def _devices_per_engine(where: str, group: EngineGroupConfig, sglang: Mapping[str, Any]) -> int:
    """`devices_per_engine`, or what `tp_size` x `pp_size` give; the two must agree."""
    pp_size, tp_size = size(sglang, "pp_size") or 1, size(sglang, "tp_size")
    if group.devices_per_engine is None:
        return (tp_size or 1) * pp_size
    if group.devices_per_engine < 1 or group.devices_per_engine % pp_size:
        todo = f"Choose a multiple of rollout.sglang.pp_size={pp_size}."
        raise SlimeError(f"is {group.devices_per_engine}", where=f"{where}.devices_per_engine", todo=todo)
    if tp_size is not None and tp_size * pp_size != group.devices_per_engine:
        what = f"is {group.devices_per_engine}, but tp_size {tp_size} x pp_size {pp_size} make {tp_size * pp_size}"
        raise SlimeError(what, where=f"{where}.devices_per_engine", todo="Remove it, or remove tp_size.")
    return group.devices_per_engine


def size(sglang: Mapping[str, Any], key: str) -> int | None:
    """A size among SGLang's fields; None while it is unset or no positive number (which `check` reports)."""
    value = sglang.get(key)
    return value if isinstance(value, int) and value > 0 else None


def _all_devices(cluster: ClusterConfig, others: int, per_engine: int) -> int:
    """Devices of the only group that samples; `others` are those of frozen groups."""
    if not cluster.on_gpus:
        return per_engine
    if cluster.colocated:
        return cluster.num_trainers
    have = cluster.num_nodes * cluster.devices_per_node
    if cluster.num_trainers + others >= have:
        todo = "Lower it, raise cluster.num_nodes, or set cluster.placement=colocated."
        beside = f" beside {others} of frozen engines" if others else ""
        raise SlimeError(f"leaves none of {have} devices to engines{beside}", where="cluster.num_trainers", todo=todo)
    return have - cluster.num_trainers - others


def role_problems(groups: Iterable[EngineGroup]) -> Iterator[SlimeError]:
    roles = {group.role for group in groups}
    where = "rollout.engines"
    if Role.regular in roles and len(roles) > 1:
        todo = "Make all groups regular, or give each the role prefill or decode."
        yield SlimeError("mixes regular engines with prefill or decode engines", where=where, todo=todo)
    for role, other in ((Role.prefill, Role.decode), (Role.decode, Role.prefill)):
        if role in roles and other not in roles:
            yield SlimeError(f"has {role.name} engines but none to {other.name}", where=where, todo="Add such a group.")
