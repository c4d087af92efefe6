"""`slime preflight`, and what a run does first: every host is looked at, all at once, before anything loads."""

from __future__ import annotations

import socket
import sys
import time
from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

from slime import plugins
from slime.arguments import ArgumentParser
from slime.checkpoints import published
from slime.cluster.placement import host_names, on_node, reserve, this_node
from slime.cluster.preflight import take_folders
from slime.cluster.ray_starter import ray_here
from slime.compose.compose import examine, ready
from slime.compose.derive import has_experts
from slime.config.gpus import ROW, gpu_of
from slime.config.hf import config_folder, read_hf_config
from slime.config.paths import located, resolve
from slime.config.schema import ModelConfig, Role, RolloutConfig
from slime.errors import SlimeError
from slime.files import human_bytes
from slime.printable import printable
from slime.run_dir import RunDir
from slime.sizes.estimate import estimate_memory
from slime.sizes.version import version_bytes
from slime.topology.environment import trains_with_deepep
from slime.topology.launcher import launcher_name
from slime.topology.quantization import folders
from slime.topology.server_fields import transfer_backend, uses_deepep
from slime.topology.topology import Topology
from slime.topology.transport_protocol import StoringTransport
from slime.weights.transports import transport_of
from slime_observers.console.startup import Startup
from slime_tools.memory.estimate import GpuMemory
from slime_tools.memory.memory_plan import MIB, MemoryPlan
from slime_tools.memory.trainer import GIB
from slime_tools.preflight.disk import written
from slime_tools.preflight.host_checks import Devices, Fault, HostFacts, Wanted, check_host, read_software, sizes
from slime_tools.preflight.network import Network, measure, slow
from slime_tools.preflight.reach import unreached
from slime_tools.preflight.transfer import Transfers, measure_transfers

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


def require_ready(topology: Topology, run: RunDir, nodes: Collection[str], writes: bool) -> None:
    """The preflight `hosts`: software, GPUs, memory, disk, folders, clocks and ports (`slime.cluster.preflight`)."""
    found = look(read_wanted(topology, run, writes=writes), nodes, host_names(topology.cluster))
    if error := complaint(found):
        raise error
    for note in notes(found):
        print(printable(note), file=sys.stderr, flush=True)


def complaint(found: Mapping[str, HostFacts]) -> SlimeError | None:
    """Every fault, with the names of the hosts that have it; None if there is none."""
    hosts: dict[Fault, list[str]] = {}
    for host, seen in found.items():
        for fault in seen.faults:
            hosts.setdefault(fault, []).append(host)
    if not hosts:
        return None
    what = "; ".join(f"{', '.join(names)}: {fault.what.rstrip('.')}" for fault, names in hosts.items())
    return SlimeError(what, where="preflight", todo=" ".join(dict.fromkeys(fault.todo for fault in hosts)))


def notes(found: Mapping[str, HostFacts]) -> list[str]:
    """What is not as planned and stops no run, with the hosts that it is so on."""
    hosts: dict[str, list[str]] = {}
    for host, seen in found.items():
        for note in seen.notes:
            hosts.setdefault(note, []).append(host)
    return [f"preflight: {', '.join(names)}: {note}" for note, names in hosts.items()]


def preflight(topology: Topology, run: RunDir) -> dict[str, HostFacts]:
    """What a run would find now on each of its hosts, by name: Ray is brought up, and with several hosts a process on
    each that exchanges data with the others."""
    if not (launcher_name(topology.cluster) or topology.cluster.ray_address):
        return {socket.gethostname(): check_host(read_wanted(topology, run))}
    with ray_here(topology) as here, here.everywhere(topology, run.logs):
        slots, names = reserve(topology, Startup()), host_names(topology.cluster)
        found = look(read_wanted(topology, run), slots.nodes, names)
        if len(slots.nodes) == 1 or complaint(found):
            return found
        with_experts = has_experts(topology.config.model, plugins.load())
        network = measure(topology, slots, names, with_experts=with_experts)
        found = _with_network(found, network)
        if network.faults or not _backends(topology):
            return found
        return with_transfers(found, measure_transfers(topology, slots, names))


def _with_network(found: Mapping[str, HostFacts], network: Network) -> dict[str, HostFacts]:
    """What was found on each host, and how it exchanges data with the others."""
    facts = {}
    for host, rate in network.rates.items():
        facts[host] = {
            "network": f"{human_bytes(rate)}/s with another host, {human_bytes(network.collective)}/s with all"
        }
        if network.experts:
            facts[host]["experts"] = f"{human_bytes(network.experts)}/s through Megatron-core's dispatcher of tokens"
    return _with(found, facts, slow(network.rates), network.faults)


def with_transfers(found: Mapping[str, HostFacts], transfers: Transfers) -> dict[str, HostFacts]:
    """What was found on each host, and how KV caches get from it to others."""
    return _with(found, {host: transfers.facts(host) for host in found}, transfers.slow(), transfers.faults)


def _with(
    found: Mapping[str, HostFacts],
    facts: Mapping[str, Mapping[str, str]],
    notes: Mapping[str, str],
    faults: Mapping[str, Fault],
) -> dict[str, HostFacts]:
    """What was found on each host, and more of it."""
    return {
        host: replace(
            seen,
            facts={**seen.facts, **facts.get(host, {})},
            notes=[*seen.notes, *([notes[host]] if host in notes else [])],
            faults=[*seen.faults, *([faults[host]] if host in faults else [])],
        )
        for host, seen in found.items()
    }


def _backends(topology: Topology) -> set[str]:
    """What moves KV caches, mooncake in one way or another; nothing without prefill and decode engines."""
    return {transfer_backend(group) for group in topology.groups if group.role is not Role.regular}


def look(wanted: Wanted, nodes: Collection[str], names: Mapping[str, str]) -> dict[str, HostFacts]:
    """What each host has, by name, as `names` are ordered; this process looks at its own host itself. Then each tries
    to reach each.

    Args:
        nodes: Ray's ids of the hosts.
        names: of all hosts, by id.
    """
    import ray

    task, since = ray.remote(max_retries=0)(check_host), time.time()
    asked = {node: task.options(**on_node(node)).remote(wanted) for node in sorted(nodes) if node != this_node()}
    found = {names[this_node()]: check_host(wanted)} if this_node() in nodes else {}
    if asked:
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=ANSWER_S)
    until = time.time()
    found |= {names[node]: _answer(answer, since, until) for node, answer in asked.items()}
    missed = unreached({this_node(), *nodes}, names, ANSWER_S) if asked else {}
    for host, faults in missed.items():
        seen = found.get(host) or HostFacts(host, until, [], {})  # the driver's, where it takes no part otherwise
        found[host] = replace(seen, faults=[*seen.faults, *faults])
    return {host: found[host] for host in names.values() if host in found}


def _answer(answer: ObjectRef[HostFacts], since: float, until: float) -> HostFacts:
    import ray

    try:
        seen = ray.get(answer, timeout=0)
    except ray.exceptions.GetTimeoutError:
        fault = Fault(f"no answer within {ANSWER_S:g} s", "See whether a file system hangs there.")
        return HostFacts("", 0.0, [fault], {})
    except ray.exceptions.RayError as error:
        words = str(error).strip().splitlines()[-1]
        return HostFacts("", 0.0, [Fault(f"it could not be looked at: {words}", "Run 'slime plugins' there.")], {})
    return HostFacts(seen.host, seen.clock, [*seen.faults, *_clock(seen.clock, since, until)], seen.facts, seen.notes)


def _clock(clock: float, since: float, until: float) -> Iterator[Fault]:
    """Compare with the time between question and answer."""
    for seconds, word in ((since - clock, "behind"), (clock - until, "ahead of")):
        if seconds > CLOCK_S:
            yield Fault(f"its clock is {seconds:.0f} s {word} the driver's", "Have the hosts' clocks set by NTP.")


def read_wanted(topology: Topology, run: RunDir, *, writes: bool = True) -> Wanted:
    cfg, cluster = topology.config, topology.cluster
    backends, installed = _backends(topology), plugins.load()
    hf = read_hf_config(config_folder(cfg.model), cfg.model.num_layers)
    estimate = estimate_memory(topology, installed.models.create(cfg.model.family), hf, installed)
    plan = estimate.plan if isinstance(estimate, GpuMemory) else None
    to_write = _disk(run, plan) if plan and writes else 0.0
    space = {gettempdir(): TEMPORARY, str(run.path): to_write}
    taken = take_folders(topology, run)
    locks = {"run.dir": run.lock, **taken}
    transport = transport_of(topology.transport)
    if isinstance(transport, StoringTransport):
        folder = taken[transport.folder].parent
        home = str(run.path if folder.is_relative_to(run.path) else folder)
        versions = transport.to_write(folder, version_bytes(topology, plan.weights, plan.model)) if plan else 0
        space[home] = space.get(home, 0.0) + versions
    return Wanted(
        software=read_software(),
        nonces={key: (lock, lock.read_text()) for key, lock in locks.items()},
        folders={key: (located(path), sizes(resolve(path))) for key, path in _folders(cfg.model, cfg.rollout)},
        modules=_modules(topology, backends),
        ib_devices=cluster.ib_devices if "mooncake" in backends else (),
        devices=_devices(topology, plan) if cluster.on_gpus else None,
        memory=max(place.table.total(place.table.peak) for place in plan.hosts) if plan else 0.0,
        space=space | ({"/dev/shm": SHARED_MEMORY + (plan.shared_memory if plan else 0.0)} if cluster.on_gpus else {}),
    )


def _folders(model: ModelConfig, rollout: RolloutConfig) -> Iterator[tuple[str, str]]:
    """What trainers and engines read on their own hosts, by its key."""
    paths = {
        "model.path": model.path,
        "model.tokenizer": model.tokenizer,
        "model.weights": model.weights,
        **folders(rollout),
        **{f"rollout.engines.{name}.model": group.model for name, group in rollout.engines.items()},
    }
    yield from ((key, path) for key, path in paths.items() if path is not None)


def _devices(topology: Topology, plan: MemoryPlan | None) -> Devices:
    total, gpu = topology.cluster.device_memory_mb, gpu_of(topology.cluster)
    return Devices(
        count=max(place.devices.stop for place in topology.places),
        total=None if total is None else float(total * MIB),
        peak=max(place.table.total(place.table.peak) for place in plan.devices) if plan else 0.0,
        gpu=(topology.cluster.gpu or ROW, gpu) if gpu else None,
        are_first=not topology.cluster.ray_address,
    )


def _modules(topology: Topology, backends: Collection[str]) -> Sequence[str]:
    """What the plan needs beside slime's own requirements."""
    trains = trains_with_deepep(topology.config.train.megatron)
    deepep = ["deep_ep"] if trains or any(uses_deepep(group.sglang) for group in topology.groups) else []
    return deepep + (["mooncake.engine"] if backends else [])


def _disk(run: RunDir, plan: MemoryPlan) -> float:
    """Bytes that the run will still write: checkpoints, one more than are kept, and the exported weights."""
    its = written(plan)
    return its.checkpoint * max(0, its.num_checkpoints - len(published(run.checkpoints))) + its.export


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = """\
Looks at every host: software, GPUs, memory, disk, run directory, model, clock. Exit code 2 if a host is not ready."""
    parser.add_keys()


def run(args: Namespace) -> None:
    composed = examine(args.keys)
    cfg = ready(composed).cfg
    assert composed.topology, "the config has no problems"
    with RunDir.open(Path(cfg.run.dir) / cfg.run.name) as run:
        found = preflight(composed.topology, run)
    for host, seen in found.items():
        print(printable(f"{host:<20} {'not ready' if seen.faults else 'ready'}"))
        for name, value in seen.facts.items():
            print(printable(f"  {name:<20} {value}"))
    for note in notes(found):
        print(printable(note))
    if error := complaint(found):
        raise error
