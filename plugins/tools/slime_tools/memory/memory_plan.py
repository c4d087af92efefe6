"""What the fullest devices and hosts of a run hold, phase by phase."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from slime.algo.stages import run_stages
from slime.config.gpus import gpu_of
from slime.config.schema import SlimeConfig
from slime.engines.limits import longest_sequence
from slime.layout import Grid, split_layers
from slime.models.blocks import KEYS_A_ROW, BuildingBlock
from slime.objective import Source
from slime.plan.work import sharing
from slime.sizes.model import ModelSizes
from slime.sizes.parameters import DRAFTING_LAYER, Held, blocks_by_layer, learns_to_draft
from slime.sizes.version import version_bytes
from slime.topology.engines import EngineGroup
from slime.topology.environment import trains_with_deepep
from slime.topology.recordings import recordings_of
from slime.topology.transport import BROADCAST
from slime.topology.transport_protocol import StoringTransport
from slime.weights.transports import transport_of
from slime_tools.memory.activations import Activations
from slime_tools.memory.engine import EngineRank
from slime_tools.memory.trainer import BF16, FP32, GIB, PROCESS, Table, TrainerRank, in_flight

MIB = 2**20
MARGIN = 0.075
"""Share of a device that a prediction may be off by: the largest error of training that was measured
(`benchmarks/results/memory-h200.md`). What comes nearer to the device's memory is tight."""


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
class MemoryPlan(ModelSizes):
    """Of a run on GPUs.

    Attributes:
        held: of a rank of each stage, if that is known already.
    """

    held: Sequence[Held] | None = None

    @classmethod
    def of(cls, sizes: ModelSizes) -> MemoryPlan:
        return cls(sizes.topology, sizes.model, sizes.weights, sizes.adapters, sizes.frozen)

    @property
    def cfg(self) -> SlimeConfig:
        return self.topology.config

    @property
    def grid(self) -> Grid:
        return self.topology.grid

    @property
    def colocated(self) -> bool:
        return self.topology.cluster.colocated

    @property
    def device_bytes(self) -> float | None:
        size = self.cfg.cluster.device_memory_mb
        return None if size is None else size * MIB

    @property
    def room(self) -> float | None:
        """Bytes of a device without the margin."""
        return None if self.device_bytes is None else (1 - MARGIN) * self.device_bytes

    @property
    def host_bytes(self) -> float | None:
        size = self.cfg.cluster.host_memory_gb
        return None if size is None else size * GIB

    @property
    def tokens(self) -> int:
        """Tokens of a full micro-batch."""
        return self.cfg.train.max_tokens_per_micro_batch

    @cached_property
    def trainers(self) -> list[TrainerRank]:
        """A rank of every pipeline stage."""
        cfg, grid, learning = self.cfg, self.grid, run_stages(self.cfg)
        tied, drafting = (
            bool(self.model.get("share_embeddings_and_output_weights")),
            learns_to_draft(cfg.train, self.weights),
        )
        held = self.held or self.held_of(grid, self.model)
        longest = min(self.tokens, longest_sequence(cfg)[0]) if self.topology.generates else self.tokens
        shares = self.topology.generates and sharing(cfg.train, cfg.cluster, grid) > 0
        activations = Activations(self.model, grid, self.tokens, longest, KEYS_A_ROW if shares else 1.0)
        of_blocks = {blocks: activations.layer(blocks) for blocks in set(self._by_layer.values())}
        last = grid.pp - 1
        critic = self.held_of_critic(grid, self.model) if learning.have_critic else [None] * grid.pp
        shared = TrainerRank(
            held=held[0],
            grid=grid,
            stage=0,
            layers=(),
            activations=0,
            precision=BF16 if self.model.get("bf16", True) else FP32,
            computes_logprobs=learning.num_passes > 0,
            has_reference=learning.needs(Source.reference),
            has_teacher=learning.needs(Source.teacher),
            cpu_adam=bool(cfg.train.optimizer.get("optimizer_cpu_offload")),
            colocated=self.topology.shares_gpus,
            takes_turns=self.topology.takes_turns,
            saves=cfg.train.checkpoint.interval is not None,
            saves_meanwhile=cfg.train.checkpoint.async_save or self.num_copies > 0,
            num_copies=self.num_copies,
            trains_adapters=bool(self.adapters),
            critic_takes_turns=cfg.algo.critic.offload,
            deepep=trains_with_deepep(self.model),
        )
        ranks = []
        for stage, chunks in enumerate(split_layers(self.model["num_layers"], grid, self.model)):
            mine = [of_blocks[self._by_layer[layer]] for chunk in chunks for layer in chunk]
            head = (0.0, 0.0)
            if stage == last:
                chunk_tokens = cfg.train.logprob_chunk_tokens
                behind = {"tied": tied, "drafting": drafting, "fp32_logits": cfg.model.fp32_lm_head}
                head = activations.head(self.model["vocab_size"], chunk_tokens, **behind)
                if drafting:
                    mine.append(activations.layer(self._by_layer[DRAFTING_LAYER]))
            ranks.append(
                dataclasses.replace(
                    shared,
                    held=held[stage],
                    critic=critic[stage],
                    stage=stage,
                    layers=tuple(mine),
                    head=head,
                    activations=activations.stage(mine, in_flight(grid, stage), head),
                    bucket=self.bucket,
                    num_buckets=(2 if self.colocated else 3) if self.colocated or stage == 0 else 0,
                    quantizes=self.topology.weight_format is not None,
                )
            )
        return ranks

    @property
    def num_copies(self) -> int:
        """Of a host's files that lie in the memory of hosts, by host: the newest, the one before while that is made,
        and the same of another host."""
        num_hosts = len({place.node for place in self.topology.trainer_places})
        return 2 * min(num_hosts, 2) if self.cfg.train.checkpoint.in_memory_every else 0

    @property
    def shared_memory(self) -> float:
        """Bytes of them on the fullest host."""
        return max(rank.saved for rank in self.trainers) * self._per_host * self.num_copies

    @property
    def _per_host(self) -> int:
        return min(self.cfg.cluster.devices_per_node, self.cfg.cluster.num_trainers)

    @property
    def blocks(self) -> set[BuildingBlock]:
        return {weight.owner for weight in self.weights}

    @cached_property
    def _by_layer(self) -> dict[int, tuple[BuildingBlock, ...]]:
        return blocks_by_layer(self.weights)

    @cached_property
    def bucket(self) -> float:
        """`weights.bucket_mb`, or the largest tensor, in bf16."""
        if not self.topology.generates:
            return 0.0
        largest: float = max(float(self.cfg.weights.bucket_mb * MIB), *(2.0 * math.prod(w.shape) for w in self.weights))
        return largest

    @cached_property
    def engines(self) -> dict[str, EngineRank]:
        """A rank of every group that samples."""
        longest = longest_sequence(self.cfg)[0] if self.topology.generates else 1
        return {
            group.name: EngineRank(
                group,
                self.model,
                self.weights,
                longest,
                self.device_bytes,
                self.colocated,
                self.topology.takes_turns,
                self.topology.weight_format,
                self.cfg.weights.num_sources,
                self.topology.transport == BROADCAST,
                gpu_of(self.cfg.cluster),
            )
            for group in self.topology.groups
        }

    @cached_property
    def frozen_engines(self) -> dict[str, EngineRank]:
        """A rank of every frozen group whose model's sizes are known. What it is asked is taken to be as long as a
        sample."""
        longest = longest_sequence(self.cfg)[0] if self.topology.generates else 1
        gpu = gpu_of(self.cfg.cluster)
        known = ((group, self.frozen[group.name]) for group in self.topology.frozen if group.name in self.frozen)
        return {
            group.name: EngineRank(group, other.model, other.weights, longest, self.device_bytes, gpu=gpu)
            for group, other in known
        }

    @property
    def every_engine(self) -> dict[str, EngineRank]:
        return {**self.engines, **self.frozen_engines}

    @cached_property
    def devices(self) -> list[Place]:
        groups = self.topology.groups
        arriving = 0.0 if self.colocated else self.bucket
        engines = {group.name: self.engines[group.name].on_device(bucket=arriving) for group in groups}
        trainers = [trainer.on_device() for trainer in self.trainers]
        frozen = [
            Place(f"engine group {name}", rank.on_device(bucket=0.0), None, rank.group)
            for name, rank in self.frozen_engines.items()
        ]
        if not (self.colocated and groups):
            return [
                *(Place(_stage(stage, self.grid), table, stage) for stage, table in enumerate(trainers)),
                *(Place(f"engine group {group.name}", engines[group.name], None, group) for group in groups),
                *frozen,
            ]
        places = []
        for stage, group in self._pairs():
            table = Table()
            table.merge(trainers[stage])
            table.merge(engines[group.name])
            places.append(Place(f"{_stage(stage, self.grid)}, engine group {group.name}", table, stage, group))
        return [*places, *frozen]

    def _pairs(self) -> list[tuple[int, EngineGroup]]:
        """Stages and engine groups that share a device."""
        per_stage = self.grid.world_size // self.grid.pp
        pairs: dict[tuple[int, str], tuple[int, EngineGroup]] = {}
        for group, ranks in zip(self.topology.group_of_engine, self.topology.engine_ranks, strict=True):
            for stage in range(ranks.start // per_stage, (ranks.stop - 1) // per_stage + 1):
                pairs[stage, group.name] = (stage, group)
        return list(pairs.values())

    @cached_property
    def hosts(self) -> list[Place]:
        """A host full of trainers of each stage, and of engines."""
        per_host = self._per_host
        beside = per_host if self.colocated else self.cfg.cluster.devices_per_node - per_host
        frozen = sum(group.devices for group in self.topology.frozen) if self.colocated else 0  # else among the others
        alone = min(frozen, self.cfg.cluster.devices_per_node - per_host)
        # What a rank of an engine notes of every token of its pool for the trainers, page-locked.
        pool = max((rank.pool_tokens or 0 for rank in self.engines.values()), default=0)
        recorded = pool * sum(recording.token_bytes for recording in recordings_of(self.cfg))
        places = []
        for stage, trainer in enumerate(self.trainers):
            table = trainer.on_host(per_host)
            table.add("engine processes", PROCESS * (beside + alone) if self.engines else 0, table.phases)
            table.add("kept versions", self._kept(int(stage == 0), beside), table.phases)
            table.add("recorded tokens", recorded * beside, table.phases)
            places.append(Place(_stage(stage, self.grid), table, stage))
        return places

    def _kept(self, num_publishers: int, engine_devices: int) -> float:
        """What each publisher and each engine of a host keep of a version."""
        transport = transport_of(self.topology.transport)
        if not isinstance(transport, StoringTransport) or not self.topology.generates:
            return 0.0
        sizes = [group.devices_per_engine for group in self.topology.groups]  # none of engines outside the run
        num_holders = num_publishers + (math.ceil(engine_devices / min(sizes)) if sizes else 0)
        return float(
            num_holders * transport.kept(self.cfg.weights, version_bytes(self.topology, self.weights, self.model))
        )


def _stage(stage: int, grid: Grid) -> str:
    return f"pipeline stage {stage + 1} of {grid.pp}" if grid.pp > 1 else "every trainer"


def most(place: Place) -> float:
    """Bytes held at the peak."""
    return place.table.total(place.table.peak)
