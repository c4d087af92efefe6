"""Before anything loads: every host of a run is looked at, all at the same time, and what is wrong is told at once."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

from slime import plugins
from slime.checkpoints import published
from slime.cluster.checkup import Devices, Fault, Seen, Wanted, check_host, read_software, sizes
from slime.cluster.launch import ray_everywhere, ray_here
from slime.cluster.placement import HOST_LABEL, reserve, this_node
from slime.cluster.reach import unreached
from slime.config.hf import read_hf_config
from slime.config.hostfile import read_hostfile
from slime.config.needs import config_folder
from slime.config.paths import located, resolve
from slime.config.schema import Device, Role, SlimeConfig, Transport
from slime.errors import SlimeError
from slime.observe.startup import Startup
from slime.plan.memory import MIB, MemoryPlan, plan_memory
from slime.run_dir import RunDir
from slime.topology.engines import engine_groups
from slime.topology.fp8 import IN_BLOCKS
from slime.topology.links import version_bytes
from slime.topology.memory import GIB
from slime.topology.placement import engine_places, trainer_places
from slime.topology.server_fields import uses_deepep
from slime.topology.transport import transport_of

if TYPE_CHECKING:
    from ray import ObjectRef

ANSWER_S = 180.0
"""How long a host may take: a file system that is gone never answers."""
CLOCK_S = 5.0
"""Seconds that a clock may differ from the driver's: logs and stacks of several hosts are read side by side."""
TEMPORARY = 1 * GIB
"""For Ray's logs and sockets, and the engines' scratch folders."""
SHARED_MEMORY = 1 * GIB
"""For NCCL between the GPUs of a host, and for SGLang between its processes."""


def require_ready(cfg: SlimeConfig, run: RunDir, nodes: Collection[str], *, writes: bool) -> None:
    """Stop unless every host has what the run needs.

    Args:
        nodes: Ray's ids of the hosts.
        writes: the run will write checkpoints.

    Raises:
        SlimeError: all that is wrong, each with the hosts that it is wrong on.
    """
    if error := complaint(look(read_wanted(cfg, run, writes=writes), nodes, _names(cfg))):
        raise error


def complaint(found: Mapping[str, Seen]) -> SlimeError | None:
    """Every fault, with the names of the hosts that have it; None if there is none."""
    hosts: dict[Fault, list[str]] = {}
    for host, seen in found.items():
        for fault in seen.faults:
            hosts.setdefault(fault, []).append(host)
    if not hosts:
        return None
    what = "; ".join(f"{', '.join(names)}: {fault.what.rstrip('.')}" for fault, names in hosts.items())
    return SlimeError(what, where="preflight", todo=" ".join(dict.fromkeys(fault.todo for fault in hosts)))


def preflight(cfg: SlimeConfig, run: RunDir) -> dict[str, Seen]:
    """What a run would find now on each of its hosts, by name: Ray is brought up, and nothing else."""
    if not (cfg.cluster.hostfile or cfg.cluster.ray_address):
        return {socket.gethostname(): check_host(read_wanted(cfg, run))}
    with ray_here(cfg) as here, ray_everywhere(cfg, here, run.logs):
        return look(read_wanted(cfg, run), reserve(cfg, Startup()).nodes, _names(cfg))


def look(wanted: Wanted, nodes: Collection[str], names: Mapping[str, str]) -> dict[str, Seen]:
    """What each host has, by name; this process looks at its own host itself. Then each tries to reach each.

    Args:
        nodes: Ray's ids of the hosts.
        names: of all hosts, by id.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task, since = ray.remote(num_cpus=0, max_retries=0)(check_host), time.time()
    asked = {
        node: task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(wanted)
        for node in sorted(nodes)
        if node != this_node()
    }
    found = {names[this_node()]: check_host(wanted)} if this_node() in nodes else {}
    if asked:
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=ANSWER_S)
    until = time.time()
    found |= {names[node]: _answer(answer, since, until) for node, answer in asked.items()}
    missed = unreached({this_node(), *nodes}, names, ANSWER_S) if asked else {}
    for host, faults in missed.items():
        seen = found.get(host) or Seen(host, until, [], {})  # the driver's, where it takes no part otherwise
        found[host] = replace(seen, faults=[*seen.faults, *faults])
    return found


def _names(cfg: SlimeConfig) -> dict[str, str]:
    """What the hostfile, or else Ray, calls each host, by Ray's id."""
    import ray

    hosts = read_hostfile(cfg.cluster.hostfile) if cfg.cluster.hostfile else []
    names = {}
    for node in ray.nodes():
        number = node["Labels"].get(HOST_LABEL)
        names[node["NodeID"]] = hosts[int(number)] if hosts and number else node["NodeManagerHostname"]
    return names


def _answer(answer: ObjectRef[Seen], since: float, until: float) -> Seen:
    import ray

    try:
        seen = ray.get(answer, timeout=0)
    except ray.exceptions.GetTimeoutError:
        fault = Fault(f"no answer within {ANSWER_S:g} s", "See whether a file system hangs there.")
        return Seen("", 0.0, [fault], {})
    except ray.exceptions.RayError as error:
        words = str(error).strip().splitlines()[-1]
        return Seen("", 0.0, [Fault(f"it could not be looked at: {words}", "Run 'slime plugins' there.")], {})
    return Seen(seen.host, seen.clock, [*seen.faults, *_clock(seen.clock, since, until)], seen.facts)


def _clock(clock: float, since: float, until: float) -> Iterator[Fault]:
    """Compare with the time between question and answer."""
    for seconds, word in ((since - clock, "behind"), (clock - until, "ahead of")):
        if seconds > CLOCK_S:
            yield Fault(f"its clock is {seconds:.0f} s {word} the driver's", "Have the hosts' clocks set by NTP.")


def read_wanted(cfg: SlimeConfig, run: RunDir, *, writes: bool = True) -> Wanted:
    """What every host of a run must have."""
    bridge = plugins.load().models.create(cfg.model.family)
    plan = plan_memory(cfg, bridge, read_hf_config(config_folder(cfg.model), cfg.model.num_layers))
    on_gpus, backends = cfg.cluster.device is Device.cuda, _transfer_backends(cfg)
    space = {gettempdir(): TEMPORARY, str(run.path): _disk(cfg, run, plan) if plan and writes else 0.0}
    locks = {"run.dir": run.lock}
    if transport_of(cfg) is Transport.disk:
        folder = Path(located(cfg.weights.path))
        locks["weights.path"] = run.take(folder, "weights.path")
        home = str(run.path if folder.is_relative_to(run.path) else folder)
        space[home] = space.get(home, 0.0) + (_versions(cfg, folder, plan) if plan else 0.0)
    return Wanted(
        software=read_software(),
        nonces={key: (lock, lock.read_text()) for key, lock in locks.items()},
        folders={key: (located(path), sizes(resolve(path))) for key, path in _folders(cfg)},
        modules=_modules(cfg, backends),
        ib_devices=cfg.cluster.ib_devices if "mooncake" in backends else (),
        devices=_devices(cfg, plan) if on_gpus else None,
        memory=max(place.table.total(place.table.peak) for place in plan.hosts) if plan else 0.0,
        space=space | ({"/dev/shm": SHARED_MEMORY} if on_gpus else {}),
    )


def _folders(cfg: SlimeConfig) -> Iterator[tuple[str, str]]:
    """What trainers and engines read on their own hosts, by its key."""
    fp8 = None if cfg.rollout.fp8 == IN_BLOCKS else cfg.rollout.fp8
    paths = {
        "model.path": cfg.model.path,
        "model.tokenizer": cfg.model.tokenizer,
        "model.weights": cfg.model.weights,
        "rollout.fp8": fp8,
    }
    yield from ((key, path) for key, path in paths.items() if path is not None)


def _devices(cfg: SlimeConfig, plan: MemoryPlan | None) -> Devices:
    places = [*trainer_places(cfg), *(place for places in engine_places(cfg) for place in places)]
    total = cfg.cluster.device_memory_mb
    return Devices(
        count=max(place.devices.stop for place in places),
        total=None if total is None else float(total * MIB),
        peak=max(place.table.total(place.table.peak) for place in plan.devices) if plan else 0.0,
        are_first=not cfg.cluster.ray_address,
    )


def _transfer_backends(cfg: SlimeConfig) -> set[str]:
    """Over which engines that only prefill or only decode exchange KV caches."""
    groups = [group for group in engine_groups(cfg) if group.role is not Role.regular]
    return {str(group.sglang.get("disaggregation_transfer_backend", "mooncake")) for group in groups}


def _modules(cfg: SlimeConfig, backends: Collection[str]) -> Sequence[str]:
    """What the plan needs beside slime's own requirements."""
    trains = cfg.train.megatron.get("moe_flex_dispatcher_backend") == "deepep"
    deepep = ["deep_ep"] if trains or any(uses_deepep(group.sglang) for group in engine_groups(cfg)) else []
    return deepep + (["mooncake.engine"] if any(name.startswith("mooncake") for name in backends) else [])


def _disk(cfg: SlimeConfig, run: RunDir, plan: MemoryPlan) -> float:
    """Bytes that the run will still write: checkpoints of weights, masters and moments, one more than are kept, and the
    exported weights."""
    precision, num_weights = plan.trainers[0].precision, sum(weight.numel for weight in plan.weights)
    owned = sum(rank.owned for rank in plan.trainers) * plan.grid.world_size / plan.grid.pp
    checkpoint = precision.weight * num_weights + precision.optimizer * owned
    missing = max(0, min(cfg.train.checkpoint.keep + 1, _num_saves(cfg)) - len(published(run.checkpoints)))
    return float(checkpoint * missing) + (precision.weight * num_weights if cfg.train.checkpoint.export_hf else 0)


def _versions(cfg: SlimeConfig, folder: Path, plan: MemoryPlan) -> float:
    """Bytes of weight versions that the run will still write: a full one beside the full one that it replaces. Deltas
    are left out; each is smaller than a full version, mostly by far."""
    from slime.weights.shared.stored import stored  # torch with it, which takes a second

    return float(version_bytes(cfg, plan.weights, plan.model) * (1 if stored(folder) else 2))


def _num_saves(cfg: SlimeConfig) -> int:
    interval, stages = cfg.train.checkpoint.interval, [cfg.sft.num_steps]
    if interval is None:
        return 0
    if cfg.algo.name != "sft":
        stages.append(cfg.run.num_steps)
    return sum(-(-steps // interval) if interval else int(steps > 0) for steps in stages)
