"""Whether a run fits the memory of its devices and hosts, and the settings with which it would."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping

from slime.algo.stages import run_stages
from slime.config.changes import Changes, changed, in_words
from slime.config.gpus import GPU, HOW_TO_NAME, ROW, gpu_of
from slime.config.schema import ClusterConfig
from slime.engines.limits import longest_of
from slime.errors import SlimeError
from slime.topology.placement import BY_TURNS, SAVER
from slime.topology.topology import read_topology
from slime_tools.memory.engine import EngineRank
from slime_tools.memory.memory_plan import MARGIN, MemoryPlan, Place, most
from slime_tools.memory.trainer import COPIES, GAPS, GIB, Phase

DEVICE = "memory a device"


def memory_problems(plan: MemoryPlan) -> Iterator[SlimeError]:
    """Phases that do not fit, as far as sizes are known: one of all kinds of device, or else one of hosts, which
    another layout changes."""
    for rank in plan.every_engine.values():
        yield from _pool_problems(plan, rank)
    if plan.device_bytes is not None:
        fullest = max(plan.devices, key=most)
        if most(fullest) > plan.device_bytes:
            yield SlimeError(_in(fullest, plan.device_bytes), where=DEVICE, todo=_remedy(plan, fullest))
            return
    if plan.host_bytes is not None:
        host = max(plan.hosts, key=most)
        if most(host) > plan.host_bytes:
            item = max(host.table.rows, key=lambda name: host.table.rows[name].get(host.table.peak, 0.0))
            what = f"{_in(host, plan.host_bytes)}, {item} most of it"
            yield SlimeError(what, where="memory a host", todo=_remedy_of_host(plan, host))


def gpu_warnings(cluster: ClusterConfig) -> Iterator[SlimeError]:
    """What a plan does not know of GPUs without a row, and a memory that is not that of the row."""
    gpu, memory = gpu_of(cluster), cluster.device_memory_mb
    if gpu is None:
        what = "is not set: no seconds are estimated, and kernels are not held against what the GPU can do"
        yield SlimeError(what, where=GPU, todo=HOW_TO_NAME)
    elif memory and not 0.95 < memory / gpu.memory_mib < 1.05:
        has = f"{cluster.gpu or 'the GPU'} has {gpu.memory_mib:,.0f}"
        todo = f"Set {GPU}, or {ROW}.memory_mib={memory} if the rates of that row are right."
        what = f"is {memory:,}, but {has}: seconds would be another GPU's"
        yield SlimeError(what, where="cluster.device_memory_mb", todo=todo)


def memory_warnings(plan: MemoryPlan) -> Iterator[SlimeError]:
    """A phase that fits by less than the error of its prediction, and what is not known of the GPU."""
    yield from gpu_warnings(plan.topology.cluster)
    if plan.device_bytes is None or plan.room is None:
        return
    fullest = max(plan.devices, key=most)
    if plan.room < most(fullest) <= plan.device_bytes:
        what = f"{_in(fullest, plan.device_bytes)}, which is tight: predictions are off by up to {MARGIN:.1%}"
        yield SlimeError(what, where=DEVICE, todo=_remedy(plan, fullest))


def _in(place: Place, capacity: float) -> str:
    peak = place.table.peak
    need = place.table.total(peak) / GIB
    return f"'{peak.value}' needs {need:.1f} GiB of {capacity / GIB:.1f} ({place.name})"


def _pool_problems(plan: MemoryPlan, rank: EngineRank) -> Iterator[SlimeError]:
    if plan.device_bytes is None or not _is_short(rank):
        return
    what = (
        f"leaves room for {rank.pool_tokens:,} tokens beside {rank.weight_bytes / GIB:.1f} GiB of weights, "
        f"and a sequence may have {rank.longest:,}"
    )
    is_limited = rank.get("max_total_tokens") == rank.pool_tokens
    where = rank.group.home_of("max_total_tokens" if is_limited else "mem_fraction_static")
    larger = f"Raise rollout.engines.{rank.group.name}.devices_per_engine, or add --fit to see which layouts fit."
    enough = {where: math.ceil(rank.least_fraction * 100) / 100}
    todo = "Raise it." if is_limited else f"Set {in_words(enough)[0]}." if _fits(plan, enough) else larger
    yield SlimeError(what, where=where, todo=todo)


def _is_short(rank: EngineRank) -> bool:
    """Whether its token pool has no room for the longest sequence."""
    return rank.pool_tokens is not None and rank.pool_tokens < rank.longest


def _remedy(plan: MemoryPlan, place: Place) -> str:
    """The fewest settings with which everything fits, margin included, by this very plan."""
    steps = list(_steps(plan, place))
    for count in range(1, len(steps) + 1):
        for chosen in itertools.combinations(steps, count):
            changes = {key: value for step in chosen for key, value in step.items()}
            if _fits(plan, changes):
                return f"Set {' '.join(in_words(changes))}."
    return "Use more devices, or another layout: add --fit to 'slime plan' to see which fit."


def _remedy_of_host(plan: MemoryPlan, host: Place) -> str:
    """The setting that has this host hold least of what it can be spared; whether everything fits then is said too."""
    hosts = "use more hosts, or set cluster.host_memory_gb if it is wrong."
    items = sorted(host.table.rows, key=lambda name: -host.table.rows[name].get(host.table.peak, 0.0))
    steps = [step for name in items if (step := _SPARED.get(name)) and host.table.rows[name].get(host.table.peak)]
    for changes in steps:
        if plan.room is not None and _fits(plan, changes):
            return f"Set {' '.join(in_words(changes))}, or {hosts}"
    if steps:
        return f"{' '.join(in_words(steps[0]))} lowers it, which is not enough: beside that, {hosts}"
    return hosts.capitalize()


_SPARED: Mapping[str, Changes] = {
    "kept versions": {"weights.full_every": 1},
    "Adam on the CPU": {"train.optimizer.optimizer_cpu_offload": False},
    "reference": {"algo.kl_coef": None},
    COPIES: {"train.checkpoint.in_memory_every": 0},
}
"""What a host need not hold, and the setting without it."""


def _steps(plan: MemoryPlan, place: Place) -> Iterator[Changes]:
    """What lowers the peak of a device, the cheapest first."""
    assert plan.room is not None, "asked for"
    cfg, table, over = plan.cfg, place.table, most(place) - plan.room
    megatron, optimizer = cfg.train.megatron, cfg.train.optimizer
    if plan.topology.shares_gpus and not plan.topology.takes_turns:
        yield BY_TURNS
    buckets = table.rows.get("publish buckets" if place.stage is not None else "arriving weights", {})
    if place.stage is None and buckets.get(table.peak, 0.0) > over:
        yield _smaller_bucket(plan, over / buckets[table.peak])
    if place.group is not None and (table.peak in (Phase.generate, Phase.start) or place.stage is None):
        rank = plan.every_engine[place.group.name]
        assert plan.device_bytes is not None, "else no room is known"
        if rank.running is None:
            yield {place.group.home_of("max_running_requests"): rank.largest_batch * place.group.dp}
        lower = int(((rank.fraction or 0.0) - over / (plan.device_bytes - rank.context)) * 100) / 100
        if lower > 0:
            yield {place.group.home_of("mem_fraction_static"): lower}
    if table.peak is Phase.train:
        activations = table.rows["activations"][Phase.train]
        tokens = int(plan.tokens * (1 - over / activations / (1 + GAPS))) // 1024 * 1024
        longest = longest_of(cfg.rollout, cfg.rollout.sampling) if run_stages(cfg).reinforces else 0
        if tokens >= max(plan.grid.padded(longest), 1024):
            yield {"train.max_tokens_per_micro_batch": tokens}
    if plan.trainers[0].critic and not cfg.algo.critic.offload:
        yield {"algo.critic.offload": True}
    if not optimizer.get("optimizer_cpu_offload") and plan.model.get("bf16"):
        offload: dict[str, bool] = {"train.optimizer.optimizer_cpu_offload": True}
        if optimizer.get("use_precision_aware_optimizer") is False:
            offload["train.optimizer.use_precision_aware_optimizer"] = True
        yield offload
    if table.peak is Phase.train and megatron.get("recompute_granularity") is None:
        yield {"train.megatron.recompute_granularity": "full"}
    if place.stage is not None and buckets.get(table.peak, 0.0) > over:
        yield _smaller_bucket(plan, over / buckets[table.peak])


def _smaller_bucket(plan: MemoryPlan, share: float) -> Changes:
    return {"weights.bucket_mb": int(plan.cfg.weights.bucket_mb * (1 - share)) // 128 * 128 or 64}


def _fits(plan: MemoryPlan, changes: Changes) -> bool:
    """`_has_room`, under other settings of the same layout."""
    topology = read_topology(changed(plan.cfg, changes))
    held = plan.held or plan.held_of(plan.grid, plan.model)
    model = {**plan.model, **topology.config.train.megatron}
    return _has_room(dataclasses.replace(plan, topology=topology, model=model, held=held))


def fit_together(plan: MemoryPlan) -> bool:
    """Whether trainers and engines that share GPUs could both stay there all the time, and nobody chose."""
    chosen = SAVER in plan.cfg.rollout.sglang or not plan.topology.shares_gpus
    return not chosen and plan.room is not None and _fits(plan, {f"rollout.sglang.{SAVER}": False})


def _has_room(plan: MemoryPlan) -> bool:
    """Whether devices, with the margin, hosts and token pools have room. Asked where a device's memory is known."""
    assert plan.room is not None, "see above"
    on_hosts = plan.host_bytes is None or max(map(most, plan.hosts)) <= plan.host_bytes
    return (
        on_hosts and max(map(most, plan.devices)) <= plan.room and not any(map(_is_short, plan.every_engine.values()))
    )
