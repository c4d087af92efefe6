"""`slime plan --fit`: layouts of trainers and engines for a model on a cluster, those that fit, the fastest first.

Every candidate is a set of keys over the config that the command line gives. `slime_tools.fit.estimate` says how long
it takes, the plan's own memory model whether it fits, and the plan's own rules whether it is right.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from slime.algo.stages import run_stages
from slime.compose.check import check
from slime.compose.compose import Composed
from slime.compose.derive import derive
from slime.compose.engine_rules import engine_check_problems
from slime.compose.rules import family_problems
from slime.config.changes import Changes, changed
from slime.config.hf import config_folder, read_hf_config
from slime.config.schema import SlimeConfig
from slime.engines.limits import longest_of
from slime.errors import SlimeError
from slime.layout import FIRST, LAST, SIZE_KEYS, Grid, read_grid, split_layers
from slime.models.bridge import HfConfig
from slime.plan.flops import ForwardFlops
from slime.plugins import Plugins
from slime.sizes.model import keywords_of, sizes_of
from slime.sizes.parameters import Held, unknown_parameter
from slime.topology.placement import BY_TURNS
from slime.topology.server_fields import DEEPEP_RANKS
from slime.topology.topology import Topology, read_topology
from slime_tools.fit.candidate import Candidate, engine_changes, published
from slime_tools.fit.estimate import Layout, Rates, Work, training_seconds, work_of
from slime_tools.fit.generation import engine_seconds
from slime_tools.memory.memory_plan import MemoryPlan, most
from slime_tools.memory.problems import memory_problems
from slime_tools.memory.trainer import BF16, Phase, TrainerRank

MEGATRON, OPTIMIZER, CAP = "train.megatron", "train.optimizer", "train.max_tokens_per_micro_batch"
RECOMPUTED = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
OFFLOADED = ("optimizer_cpu_offload", "overlap_cpu_optimizer_d2h_h2d", "use_precision_aware_optimizer")
DIVIDING = (
    *(FIRST, LAST, "pipeline_model_parallel_layout", SIZE_KEYS["vpp"]),
    *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
)
"""Fields that divide the layers into stages."""
OF_LAYOUT = ("train.", "rollout.engines", "rollout.sglang", "rollout.prompts_per_step", "memory", "model family")
"""Where problems stand that another layout does not have; the others are the given config's own."""
CAPS = (1, 2, 4)
"""Sizes of a micro-batch, in longest sequences."""
SHOWN = 5
MOST_EXPERT_RANKS = 64
"""Ranks that share experts in a proposal: in larger groups the wait for each of them decides, and was not measured."""


@dataclass
class Fitted:
    """What was found.

    Attributes:
        candidates: the fastest first, and the given layout.
        num_tried: layouts that were looked at, in the order of the estimate.
        num_layouts: all that divide, with weights, gradients and optimizer within a device.
        rank: of the given layout among these, 1 for the fastest.
    """

    candidates: list[Candidate] = field(default_factory=list)
    num_tried: int = 0
    num_layouts: int = 0
    rank: int | None = None


def fit(composed: Composed, plugins: Plugins) -> Fitted:
    """Layouts for the model and cluster of a config, which itself may have problems.

    Raises:
        SlimeError: nothing fits, or the sizes are not known.
    """
    search = _Search.of(composed, plugins)
    found, given = Fitted(), search.given(composed)
    layouts = search.in_order()
    grids = {trainers.grid for trainers, _ in layouts}
    # On one device all layouts have the given one's sizes, and differ from it by the pack and the optimizer's place.
    seen = {given.grid} if given and not given.problems and len(grids) > 1 else set()
    found.num_layouts = len(layouts)
    if given and not given.problems:
        found.rank = 1 + sum(trainers.seconds + engines.seconds < given.total for trainers, engines in layouts)
    for trainers, engines in layouts:
        if trainers.grid not in seen and (candidate := search.examine(trainers, engines)):
            seen.add(trainers.grid)
            found.candidates.append(candidate)
        found.num_tried += 1
        if len(found.candidates) == SHOWN:
            break
    if not found.candidates and found.rank is None:
        for problem in composed.problems:
            if not problem.where.startswith(OF_LAYOUT):
                raise problem
        todo = "Use more hosts, shorter sequences, or another model."
        ways = (problem.todo for problem in composed.problems if problem.todo.startswith("Set train.lora.rank="))
        if adapters := next(ways, ""):  # which no layout changes: `slime-tools` asked the plan
            todo = f"{adapters.partition(' Or ')[0]} Or use more hosts, shorter sequences, or another model."
        raise SlimeError("no layout of this model fits", where=f"cluster {composed.cfg.cluster.name}", todo=todo)
    found.candidates = [published(one) for one in [*found.candidates, *([given] if given else [])]]
    found.candidates.sort(key=lambda one: (bool(one.problems), one.total))
    return found


@dataclass(frozen=True)
class _Engines:
    """Keys over the given config, and the seconds of a step by part."""

    changes: Changes
    parts: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True)
class _Trainers(_Engines):
    """A layout of the trainers, before its memory is looked at."""

    grid: Grid


@dataclass
class _Search:
    cfg: SlimeConfig
    plugins: Plugins
    hf: HfConfig
    memory: MemoryPlan
    work: Work
    rates: Rates
    _held: dict[Any, list[Held]] = field(default_factory=dict)
    _too_large: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, composed: Composed, plugins: Plugins) -> _Search:
        cfg = composed.cfg
        if not cfg.cluster.on_gpus or cfg.cluster.device_memory_mb is None:
            todo = "Choose a cluster of GPUs, and set cluster.device_memory_mb."
            raise SlimeError("--fit needs the memory of a GPU", where="cluster.device_memory_mb", todo=todo)
        hf = read_hf_config(config_folder(cfg.model), cfg.model.num_layers)
        bridge = plugins.models.create(cfg.model.family)
        mapping = bridge.weight_mapping(hf)
        if name := unknown_parameter(mapping):
            todo = "Try layouts with 'slime plan' and 'slime probe'."
            raise SlimeError(f"nobody told the size of '{name}'", where=f"model family {cfg.model.family}", todo=todo)
        topology, model = composed.topology or Topology(cfg, ()), keywords_of(cfg.train.megatron, bridge, hf)
        memory = MemoryPlan.of(sizes_of(topology, model, mapping))
        return cls(cfg, plugins, hf, memory, work_of(cfg), Rates.of(cfg.cluster))

    @property
    def model(self) -> Mapping[str, Any]:
        return self.memory.model

    def in_order(self) -> list[tuple[_Trainers, _Engines]]:
        """Every layout with every engine, the fastest first."""
        engines = list(self._engines()) if self.memory.topology.generates else [_Engines({}, {})]
        pairs = [(trainers, engine) for trainers in self._trainers() for engine in engines]
        return sorted(pairs, key=lambda pair: pair[0].seconds + pair[1].seconds)

    def given(self, composed: Composed) -> Candidate | None:
        """The config as it is given; None if its sizes do not divide."""
        cfg = self.cfg
        try:
            grid = read_grid(cfg.cluster.num_trainers, cfg.train.megatron)
            offloads = bool(cfg.train.optimizer.get("optimizer_cpu_offload"))
            parts = self._seconds(grid, cfg.train.megatron, cfg.train.max_tokens_per_micro_batch, offloads)
            engines = engine_seconds(self.cfg, self.work, self.memory.engines.values())
        except SlimeError:
            return None
        return Candidate({}, cfg, grid, {**parts, **engines}, self.memory, composed.problems)

    def examine(self, trainers: _Trainers, engines: _Engines) -> Candidate | None:
        """None if it does not fit, or if the plan finds something else against it."""
        if id(trainers) in self._too_large:
            return None
        changes = {**trainers.changes, **engines.changes}
        cfg = changed(self.cfg, {**changes, **(BY_TURNS if self.cfg.cluster.colocated else {})})  # what takes less
        held = self._held_by_stage(trainers.grid, cfg.train.megatron)
        model = {**self.model, **cfg.train.megatron}
        memory = dataclasses.replace(self.memory, topology=read_topology(cfg), model=model, held=held)
        if any(rank.on_device().total(Phase.train) > self._room for rank in memory.trainers):
            self._too_large.add(id(trainers))  # with any engines
            return None
        if max(map(most, memory.devices)) > self._room or any(True for _ in memory_problems(memory)):
            return None
        derive(cfg, self.plugins)
        checked = check(cfg, self.plugins, reads_data=False)
        if checked.memory is None or any(problem.where.startswith(OF_LAYOUT) for problem in checked.problems):
            return None
        return Candidate(changes, cfg, trainers.grid, {**trainers.parts, **engines.parts}, memory)

    def _trainers(self) -> Iterator[_Trainers]:
        cfg = self.cfg
        longest = longest_of(cfg.rollout, cfg.rollout.sampling) if run_stages(cfg).reinforces else None
        for grid, stages in self._grids():
            unit = grid.padded(longest or cfg.train.max_tokens_per_micro_batch)
            for offloads in (False, True):
                ranks = self._ranks(grid, stages, offloads)
                if max(rank.weights + rank.gradients + rank.optimizer for rank in ranks) >= self._room:
                    continue
                for recompute in ({}, RECOMPUTED):
                    for cap in (unit * times for times in CAPS):
                        megatron = {**self._sizes(grid), **stages, **recompute}
                        parts = self._seconds(grid, megatron, cap, offloads)
                        yield _Trainers(self._changes(megatron, cap, offloads), parts, grid)

    def _grids(self) -> Iterator[tuple[Grid, Changes]]:
        """Parallel sizes that divide, with the layers of first and last stages."""
        model, cluster, world = self.model, self.cfg.cluster, self.cfg.cluster.num_trainers
        latent, experts = model.get("multi_latent_attention"), model.get("num_moe_experts") or 1
        heads = model["num_attention_heads"] if latent else model["num_query_groups"]
        needed = self.work.sequences // self.work.optimizer_steps
        for pp in _powers(world, min(32, model["num_layers"])):
            stages = self._stages(pp)
            for tp in _powers(heads, cluster.devices_per_node) if stages is not None else ():
                for cp in _powers(world // pp // tp, 8) if world % (pp * tp) == 0 else ():
                    for ep in _powers(experts // 2 or 1, min(world // pp, MOST_EXPERT_RANKS)):
                        etp = 1 if 1 < ep >= tp else tp
                        grid = Grid(world, tp=tp, cp=cp, pp=pp, ep=ep, etp=etp)
                        if world % (etp * ep * pp) == 0 and grid.dp <= needed:
                            yield grid, stages or {}

    def _stages(self, pp: int) -> Changes | None:
        """Layers of the first and the last stage with which the heaviest stage is as light as it can be."""
        trained, layers = self._trained, self.model["num_layers"]
        grid, mean = Grid(pp, pp=pp), -(-layers // pp)
        around = range(max(1, mean - 4), mean + 9)
        options: list[Changes] = [{}] if layers % pp == 0 else []
        if pp == 2:
            options += [{FIRST: first, LAST: layers - first} for first in around if first < layers]
        elif pp > 2:
            options += [{LAST: last} for last in around]
            options += [{FIRST: first, LAST: last} for first in around for last in around]
        best: tuple[float, Changes] | None = None
        for option in options:
            try:
                stages = split_layers(layers, grid, {**self._bare, **option})
            except SlimeError:
                continue
            weights = [
                trained.stage(itertools.chain(*chunks), is_last=chunks is stages[-1])
                for chunks in stages
                if any(chunks)
            ]
            if (best is None or max(weights) < best[0] * 0.999) and len(weights) == pp and self._allows(pp, option):
                best = max(weights), option
        return best[1] if best else None

    def _allows(self, pp: int, stages: Changes) -> bool:
        bridge = self.plugins.models.create(self.cfg.model.family)
        return not any(True for _ in family_problems(bridge, self.hf, {SIZE_KEYS["pp"]: pp, **stages}))

    @cached_property
    def _bare(self) -> dict[str, Any]:
        """The model's keywords without what divides its layers."""
        return {key: value for key, value in self.model.items() if key not in DIVIDING}

    @cached_property
    def _trained(self) -> ForwardFlops:
        return ForwardFlops(self.model, self.memory.weights, self.work.tokens)

    def _sizes(self, grid: Grid) -> Changes:
        """And how tokens reach experts: by DeepEP where the given config has it and it supports that many ranks."""
        names = ("tp", "pp", "cp", "ep", "etp") if self.model.get("num_moe_experts") else ("tp", "pp", "cp")
        sizes, megatron = {SIZE_KEYS[name]: getattr(grid, name) for name in names}, self.cfg.train.megatron
        if megatron.get("moe_token_dispatcher_type") != "flex":
            return sizes
        if grid.ep * grid.etp in DEEPEP_RANKS:
            kept = ("moe_token_dispatcher_type", "moe_flex_dispatcher_backend")
            return {**sizes, **{key: megatron[key] for key in kept}}
        return {**sizes, "moe_token_dispatcher_type": "alltoall", "moe_flex_dispatcher_backend": None}

    def _changes(self, megatron: Changes, cap: int, offloads: bool) -> Changes:
        """The keys, with null for those of the given config that this layout has no use for."""
        given, optimizer = self.cfg.train.megatron, self.cfg.train.optimizer
        idle = {*RECOMPUTED, *DIVIDING} & given.keys()
        keys = {**megatron, **{key: None for key in sorted(idle - megatron.keys()) if given[key] is not None}}
        offload = {key: offloads for key in OFFLOADED if offloads or optimizer.get(key)}
        return {
            **{f"{MEGATRON}.{key}": value for key, value in keys.items()},
            CAP: cap,
            **{f"{OPTIMIZER}.{key}": value for key, value in offload.items()},
        }

    def _held_by_stage(self, grid: Grid, megatron: Changes) -> list[Held]:
        key = (grid.tp, grid.pp, grid.ep, grid.etp, grid.vpp, megatron.get(FIRST), megatron.get(LAST))
        if key not in self._held:
            self._held[key] = self.memory.held_of(grid, {**self._bare, **megatron})
        return self._held[key]

    @property
    def _room(self) -> float:
        """Bytes of a device that a proposal may take."""
        assert self.memory.room is not None, "asked for"
        return self.memory.room

    def _ranks(self, grid: Grid, megatron: Changes, offloads: bool) -> list[TrainerRank]:
        bare: dict[str, Any] = {"layers": (), "activations": 0.0, "precision": BF16, "cpu_adam": offloads}
        bare |= {"takes_turns": self.memory.topology.takes_turns, "trains_adapters": bool(self.memory.adapters)}
        held = self._held_by_stage(grid, megatron)
        return [TrainerRank(held=of_stage, grid=grid, stage=stage, **bare) for stage, of_stage in enumerate(held)]

    def _seconds(self, grid: Grid, megatron: Changes, cap: int, offloads: bool) -> dict[str, float]:
        model, cfg = {**self._bare, **megatron}, self.cfg
        per_node, kept = cfg.cluster.devices_per_node, cfg.train.logprob_chunk_tokens
        layout = Layout(grid, model, cap, kept, per_node, offloads, self.rates)
        return training_seconds(self.work, self._trained, layout, self._ranks(grid, megatron, offloads))

    def _engines(self) -> Iterator[_Engines]:
        """Those that fit by themselves and that SGLang takes."""
        for changes in engine_changes(self.memory.topology.groups, self.model):
            try:
                memory = dataclasses.replace(self.memory, topology=read_topology(changed(self.cfg, changes)))
                engines = [rank.on_device(bucket=0) for rank in memory.engines.values()]
                wrong = any(True for _ in engine_check_problems(memory.topology, self.model, memory.blocks))
            except SlimeError:
                continue
            if not wrong and all(table.total(table.peak) <= self._room for table in engines):
                yield _Engines(changes, engine_seconds(memory.cfg, self.work, memory.engines.values()))


def _powers(number: int, most: int) -> list[int]:
    """Powers of two that divide a number."""
    return [power for power in (2**exponent for exponent in range(11)) if power <= most and number % power == 0]
