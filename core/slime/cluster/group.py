"""All actors of a run: trainer ranks and engines."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from slime.cluster.actors import Actor, EngineActor, RunInfo, TrainerActor, remote
from slime.cluster.calls import Calls
from slime.cluster.engines import KV_CACHE, WEIGHTS, Engines
from slime.cluster.placement import Slot, reserve, this_node
from slime.cluster.ray_starter import RayHere
from slime.cluster.trainers import TrainerGroup
from slime.cluster.watch import Member
from slime.config.keys import value_of
from slime.config.paths import located
from slime.config.schema import WeightsConfig
from slime.events import Subscriber, Waiting
from slime.net import new_key
from slime.reward.engines import FrozenEngines
from slime.topology.placement import process_name
from slime.topology.quantization import folders
from slime.topology.topology import Topology
from slime.topology.transport_protocol import StoringTransport
from slime.weights.transports import transport_of


@dataclass
class Cluster:
    topology: Topology
    calls: Calls
    trainers: TrainerGroup
    engines: Engines

    def start(self) -> None:
        """Bring trainers up, and let engines start meanwhile, which `engines.finish` waits for; they hold no weights
        until the first publish.

        Colocated engines come first, because they measure the free memory of their devices, while trainers take none:
        they import their libraries. Where both take turns, engines release it again.
        """
        self.calls.check_in(self.topology.cluster.start_timeout_s)
        self.engines.begin(self.trainers.devices() if self.topology.shares_gpus else ())
        if self.topology.cluster.colocated:
            self.trainers.prepare()
            self.engines.finish()
        if self.topology.takes_turns:
            self.engines.memory("release", KV_CACHE, WEIGHTS)
        self.trainers.start()


def _for_actors(topology: Topology) -> Topology:
    """With the paths that actors read made absolute: those of a Ray that was there before work in its own folder."""
    cfg = topology.config
    tokenizer = cfg.model.tokenizer and located(cfg.model.tokenizer)
    weights = cfg.model.weights and located(cfg.model.weights)
    model = dataclasses.replace(cfg.model, path=located(cfg.model.path), tokenizer=tokenizer, weights=weights)
    teacher = dataclasses.replace(cfg.algo.teacher, path=cfg.algo.teacher.path and located(cfg.algo.teacher.path))
    quantized: dict[str, Any] = {key.partition(".")[2]: located(path) for key, path in folders(cfg.rollout).items()}
    located_config = dataclasses.replace(
        cfg,
        model=model,
        algo=dataclasses.replace(cfg.algo, teacher=teacher),
        rollout=dataclasses.replace(cfg.rollout, **quantized),
        weights=_with_located_folder(topology),
    )
    frozen = tuple(dataclasses.replace(group, model=group.model and located(group.model)) for group in topology.frozen)
    return dataclasses.replace(topology, config=located_config, frozen=frozen)


def _with_located_folder(topology: Topology) -> WeightsConfig:
    cfg, transport = topology.config, transport_of(topology.transport)
    if not isinstance(transport, StoringTransport):
        return cfg.weights
    folder: dict[str, Any] = {transport.folder.removeprefix("weights."): located(value_of(cfg, transport.folder))}
    return dataclasses.replace(cfg.weights, **folder)


@contextlib.contextmanager
def open_cluster(
    topology: Topology,
    here: RayHere,
    logs: Path,
    tell: Subscriber = lambda event: None,
    require_ready: Callable[[Collection[str]], None] = lambda nodes: None,
    frozen: FrozenEngines | None = None,
) -> Iterator[Cluster]:
    """Have the other hosts join, reserve the devices, create every actor, and take all of it down at the end.

    Args:
        logs: folder of the run directory.
        tell: told what is waited for.
        require_ready: called with Ray's ids of the hosts before anything starts on them.
        frozen: learns where frozen engines are.
    """
    with here.everywhere(topology, logs) as hosts:
        slots = reserve(topology, tell)
        require_ready(slots.nodes)
        run = RunInfo(_for_actors(topology), logs, new_key(), here.mark, slots.nodes == {this_node()})

        def member(name: str, kind: type[Actor], slot: Slot, *place: int) -> Member:
            make = partial(remote(kind, **slots.options(slot)).remote, run, *place)
            return Member(name, make(), make)

        trainers = [
            member(f"trainer-{rank}", TrainerActor, slot, rank, len(slots.trainers))
            for rank, slot in enumerate(slots.trainers)
        ]
        processes = [
            [member(process_name(index, rank), EngineActor, slot, index, rank) for rank, slot in enumerate(nodes)]
            for index, nodes in enumerate(slots.engines)
        ]
        calls = Calls(
            trainers,
            [*chain(*processes)],
            logs,
            hosts,
            lambda what, whom: tell(Waiting(what, whom, logs)),
        )
        engines = Engines(calls, topology, processes, frozen)
        try:
            yield Cluster(topology, calls, TrainerGroup(calls, topology.cluster), engines)
        finally:
            engines.stop()
