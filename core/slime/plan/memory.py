"""What the fullest devices and hosts of a run hold, phase by phase, and whether it fits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from slime.config.schema import Device, Placement, SlimeConfig, Transport
from slime.contracts import HfConfig, ModelBridge
from slime.errors import SlimeError
from slime.models.shapes import Block
from slime.rollout.limits import longest_sequence
from slime.topology import memory
from slime.topology.activations import Activations, Layer
from slime.topology.engine_memory import EngineRank
from slime.topology.engines import EngineGroup, engine_groups, generates, home_of
from slime.topology.layout import Grid, read_grid, split_layers
from slime.topology.links import version_bytes
from slime.topology.memory import GIB, Phase, Table, TrainerRank
from slime.topology.parameters import (
    Held,
    Weight,
    copies_embeddings,
    held_by_stage,
    in_force,
    learns_to_draft,
    unknown_parameter,
    weights_of,
)
from slime.topology.placement import engine_ranks
from slime.topology.transport import transport_of

MIB = 2**20


@dataclass(frozen=True)
class Place:
    """One kind of device or host: those of a pipeline stage, of an engine group, or of both.

    Attributes:
        name: for the reader.
        stage: None where no trainer is.
        group: None where no engine is.
    """

    name: str
    table: Table
    stage: int | None = None
    group: EngineGroup | None = None


@dataclass(frozen=True)
class MemoryPlan:
    """Of a run on GPUs.

    Attributes:
        model: Megatron's keywords of the model and its layout, with `vocab_size`.
        weights: every tensor of the model.
        held: of a rank of each stage, if that is known already.
    """

    cfg: SlimeConfig
    model: Mapping[str, Any]
    weights: Sequence[Weight]
    held: Sequence[Held] | None = None

    @cached_property
    def grid(self) -> Grid:
        return read_grid(self.cfg.cluster.num_trainers, self.cfg.train.megatron)

    @property
    def colocated(self) -> bool:
        return self.cfg.cluster.placement is Placement.colocated

    @property
    def device_bytes(self) -> float | None:
        size = self.cfg.cluster.device_memory_mb
        return None if size is None else size * MIB

    @property
    def host_bytes(self) -> float | None:
        size = self.cfg.cluster.host_memory_gb
        return None if size is None else size * GIB

    @property
    def tokens(self) -> int:
        """Of a full micro-batch."""
        return self.cfg.train.max_tokens_per_micro_batch

    @cached_property
    def trainers(self) -> list[TrainerRank]:
        """A rank of every pipeline stage."""
        cfg, grid = self.cfg, self.grid
        tied, drafting = bool(self.model.get("share_embeddings_and_output_weights")), learns_to_draft(cfg, self.weights)
        held = self.held or self.held_of(grid, self.model)
        longest = min(self.tokens, longest_sequence(cfg)[0]) if generates(cfg) else self.tokens
        activations = Activations(self.model, grid, self.tokens, longest)
        layers, last = self._layers(activations), grid.pp - 1
        shared = TrainerRank(
            held=held[0],
            grid=grid,
            stage=0,
            layers=(),
            activations=0,
            precision=memory.BF16 if self.model.get("bf16", True) else memory.FP32,
            computes_logprobs=self._computes_logprobs(),
            has_reference=cfg.algo.kl_coef is not None,
            cpu_adam=bool(cfg.train.optimizer.get("optimizer_cpu_offload")),
            colocated=self.colocated and bool(engine_groups(cfg)),
            saves=cfg.train.checkpoint.interval is not None,
            deepep=self.model.get("moe_flex_dispatcher_backend") == "deepep",
        )
        ranks = []
        for stage, chunks in enumerate(split_layers(self.model["num_layers"], grid, self.model)):
            mine = [layers[layer] for chunk in chunks for layer in chunk]
            head = (0.0, 0.0)
            if stage == last:
                head = activations.head(self.model["vocab_size"], cfg.train.logprob_chunk_tokens, tied=tied)
                if drafting:
                    mine.append(activations.layer(has_experts=self._has_experts(-1)))
                    head = (2 * head[0], head[1])
            ranks.append(
                dataclasses.replace(
                    shared,
                    held=held[stage],
                    stage=stage,
                    layers=tuple(mine),
                    head=head,
                    activations=activations.stage(mine, memory.in_flight(grid, stage), head),
                    bucket=self.bucket,
                    num_buckets=(2 if self.colocated else 3) if self.colocated or stage == 0 else 0,
                    quantizes=self.cfg.rollout.fp8 is not None,
                )
            )
        return ranks

    def held_of(self, grid: Grid, model: Mapping[str, Any]) -> list[Held]:
        """What a rank of every stage of a layout holds."""
        return held_by_stage(
            self.weights,
            grid,
            model,
            in_force=in_force(self.cfg, self.weights),
            copies_embeddings=copies_embeddings(self.cfg, self.weights, self.model),
        )

    def _layers(self, activations: Activations) -> list[Layer]:
        """By decoder layer; those of one kind are computed once."""
        sandwich = any(weight.name.endswith("post_layernorm.weight") for weight in self.weights)
        choosing = {weight.layer for weight in self.weights if weight.block is Block.indexer}
        kinds: dict[tuple[bool, bool], Layer] = {}
        found = []
        for layer in range(self.model["num_layers"]):
            kind = self._has_experts(layer), layer in choosing
            if kind not in kinds:
                kinds[kind] = activations.layer(has_experts=kind[0], sandwich=sandwich, chooses=kind[1])
            found.append(kinds[kind])
        return found

    def _has_experts(self, layer: int) -> bool:
        """Of a decoder layer; -1: of the prediction layer."""
        return layer in self._expert_layers

    @cached_property
    def _expert_layers(self) -> set[int]:
        of_experts = [weight for weight in self.weights if weight.block is Block.experts]
        return {-1 if weight.layer is None else weight.layer for weight in of_experts}

    def _computes_logprobs(self) -> bool:
        """Of the old policy for later steps of a rollout, and of the reference."""
        old = self.cfg.train.steps_per_rollout > 1 and not self.cfg.algo.rollout_logprobs_as_old
        return generates(self.cfg) and self.cfg.algo.name != "sft" and (old or self.cfg.algo.kl_coef is not None)

    @cached_property
    def bucket(self) -> float:
        """`weights.bucket_mb`, or the largest tensor, in bf16."""
        if not engine_groups(self.cfg):
            return 0.0
        largest: float = max(float(self.cfg.weights.bucket_mb * MIB), *(2.0 * math.prod(w.shape) for w in self.weights))
        return largest

    @cached_property
    def engines(self) -> dict[str, EngineRank]:
        """A rank of every group."""
        longest = longest_sequence(self.cfg)[0] if generates(self.cfg) else 1
        return {
            group.name: EngineRank(
                self.cfg, group, self.model, self.weights, longest, self.device_bytes, colocated=self.colocated
            )
            for group in engine_groups(self.cfg)
        }

    @cached_property
    def devices(self) -> list[Place]:
        """Every kind of device."""
        groups = engine_groups(self.cfg)
        arriving = 0.0 if self.colocated else self.bucket
        engines = {group.name: self.engines[group.name].on_device(bucket=arriving) for group in groups}
        trainers = [trainer.on_device() for trainer in self.trainers]
        if not (self.colocated and groups):
            return [
                *(Place(_stage(stage, self.grid), table, stage) for stage, table in enumerate(trainers)),
                *(Place(f"engine group {group.name}", engines[group.name], None, group) for group in groups),
            ]
        places = []
        for stage, group in self._pairs():
            table = Table()
            table.merge(trainers[stage])
            table.merge(engines[group.name])
            places.append(Place(f"{_stage(stage, self.grid)}, engine group {group.name}", table, stage, group))
        return places

    def _pairs(self) -> list[tuple[int, EngineGroup]]:
        """Stages and engine groups that share a device."""
        by_engine = [group for group in engine_groups(self.cfg) for _ in range(group.num_engines)]
        per_stage = self.grid.world_size // self.grid.pp
        pairs: dict[tuple[int, str], tuple[int, EngineGroup]] = {}
        for group, ranks in zip(by_engine, engine_ranks(self.cfg), strict=True):
            for stage in range(ranks.start // per_stage, (ranks.stop - 1) // per_stage + 1):
                pairs[stage, group.name] = (stage, group)
        return list(pairs.values())

    @cached_property
    def hosts(self) -> list[Place]:
        """A host full of trainers of each stage, and of engines."""
        per_host = min(self.cfg.cluster.devices_per_node, self.cfg.cluster.num_trainers)
        beside = per_host if self.colocated else self.cfg.cluster.devices_per_node - per_host
        places = []
        for stage, trainer in enumerate(self.trainers):
            table = trainer.on_host(per_host)
            table.add("engine processes", memory.PROCESS * beside if self.engines else 0, table.phases)
            table.add("versions for deltas", self._kept(int(stage == 0), beside), table.phases)
            places.append(Place(_stage(stage, self.grid), table, stage))
        return places

    def _kept(self, num_publishers: int, engine_devices: int) -> float:
        """A version for each publisher and each engine of a host, if deltas are written."""
        if transport_of(self.cfg) is not Transport.disk or self.cfg.weights.full_every == 1 or not self.engines:
            return 0.0
        least = min(group.devices_per_engine for group in engine_groups(self.cfg))
        num_holders = num_publishers + math.ceil(engine_devices / least)
        return float(num_holders * version_bytes(self.cfg, self.weights, self.model))


def _stage(stage: int, grid: Grid) -> str:
    return f"pipeline stage {stage + 1} of {grid.pp}" if grid.pp > 1 else "every trainer"


def plan_memory(cfg: SlimeConfig, bridge: ModelBridge, hf: HfConfig) -> MemoryPlan | None:
    """None on cpu, and of a family with blocks of its own, whose sizes are not known."""
    mapping = bridge.weight_mapping(hf)
    if cfg.cluster.device is not Device.cuda or unknown_parameter(mapping):
        return None
    model = keywords_of(cfg, bridge, hf)
    return MemoryPlan(cfg, model, weights_of(model, mapping))


def keywords_of(cfg: SlimeConfig, bridge: ModelBridge, hf: HfConfig) -> dict[str, Any]:
    """Megatron's keywords of the model and of its layout, with `vocab_size`."""
    model = {**bridge.transformer_config(hf), **bridge.model_kwargs(hf), **cfg.train.megatron}
    return {**model, "vocab_size": hf["vocab_size"]}


def most(place: Place) -> float:
    """Bytes held at the peak."""
    return place.table.total(place.table.peak)


def memory_problems(plan: MemoryPlan) -> Iterator[SlimeError]:
    """Phases that do not fit, as far as sizes are known; at most one of each kind of device, and one of hosts."""
    for rank in plan.engines.values():
        yield from _pool_problems(plan, rank)
    if plan.device_bytes is not None:
        fullest = max(plan.devices, key=most)
        if most(fullest) > plan.device_bytes:
            yield _too_much(plan, fullest)
    if plan.host_bytes is not None:
        host = max(plan.hosts, key=most)
        if most(host) > plan.host_bytes:
            item = max(host.table.rows, key=lambda name: host.table.rows[name].get(host.table.peak, 0.0))
            what = f"{_in(host, plan.host_bytes)}, {item} most of it"
            todo = "Use more hosts, or set cluster.host_memory_gb if it is wrong."
            yield SlimeError(what, where="memory a host", todo=todo)


def _in(place: Place, capacity: float) -> str:
    peak = place.table.peak
    need = place.table.total(peak) / GIB
    return f"'{peak.value}' needs {need:.1f} GiB of {capacity / GIB:.1f} ({place.name})"


def _pool_problems(plan: MemoryPlan, rank: EngineRank) -> Iterator[SlimeError]:
    if plan.device_bytes is None or rank.pool_tokens is None or rank.pool_tokens >= rank.longest:
        return
    what = (
        f"leaves room for {rank.pool_tokens:,} tokens beside {rank.weight_bytes / GIB:.1f} GiB of weights, "
        f"and a sequence may have {rank.longest:,}"
    )
    key = "max_total_tokens" if rank.get("max_total_tokens") == rank.pool_tokens else "mem_fraction_static"
    todo = f"Raise it, or rollout.engines.{rank.group.name}.devices_per_engine."
    yield SlimeError(what, where=home_of(plan.cfg, rank.group.name, key), todo=todo)


def _too_much(plan: MemoryPlan, place: Place) -> SlimeError:
    assert plan.device_bytes is not None, "compared with it"
    where, todo = "memory a device", _remedy(plan, place)
    return SlimeError(_in(place, plan.device_bytes), where=where, todo=todo)


def _remedy(plan: MemoryPlan, place: Place) -> str:
    """The nearest setting with which the phase fits."""
    assert plan.device_bytes is not None, "compared with it"
    table, over = place.table, most(place) - plan.device_bytes
    if table.peak in (Phase.generate, Phase.start) and place.group is not None:
        fraction = plan.engines[place.group.name].fraction or 0.0
        lower = int((fraction - over / plan.device_bytes) * 100) / 100
        return f"Set {home_of(plan.cfg, place.group.name, 'mem_fraction_static')}={lower:.2f}."
    if table.peak is Phase.train:
        activations = table.rows["activations"][Phase.train]
        tokens = int(plan.tokens * (1 - over / activations / (1 + memory.GAPS))) // 1024 * 1024
        if tokens >= 1024:
            return f"Set train.max_tokens_per_micro_batch={tokens}."
    if table.rows.get("optimizer", {}).get(table.peak, 0) >= over:
        return "Set train.optimizer.optimizer_cpu_offload=true."
    if table.rows.get("publish buckets", {}).get(table.peak, 0) >= over:
        return "Lower weights.bucket_mb."
    return "Cut the model into more parts (train.megatron's parallel sizes), or use more devices."
