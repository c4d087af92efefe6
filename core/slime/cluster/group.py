"""All actors of a run: trainer ranks and engines."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from slime.cluster.actors import Actor, EngineActor, RunInfo, TrainerActor, remote
from slime.cluster.calls import Calls
from slime.cluster.engines import KV_CACHE, WEIGHTS, Engines
from slime.cluster.fewer_hosts import FewerHosts
from slime.cluster.host_return import HostReturn
from slime.cluster.left import left_actors, new_name
from slime.cluster.placement import Slot, lasting, reserve, this_node
from slime.cluster.ray_starter import RayHere
from slime.cluster.trainers import TrainerGroup
from slime.cluster.watch import Member
from slime.config.changes import set_values
from slime.config.keys import value_of
from slime.config.paths import located
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
            self.engines.close()
            self.engines.memory("release", KV_CACHE, WEIGHTS)
        self.trainers.start()


def _for_actors(topology: Topology) -> Topology:
    """With the paths that actors read made absolute: those of a Ray that was there before work in its own folder."""
    cfg, transport = copy.deepcopy(topology.config), transport_of(topology.transport)
    keys = ["model.path", "model.tokenizer", "model.weights", "algo.teacher.path", *folders(cfg.rollout)]
    keys += [transport.folder] if isinstance(transport, StoringTransport) else []
    set_values(cfg, {key: located(path) for key in keys if (path := value_of(cfg, key))})
    frozen = tuple(dataclasses.replace(group, model=group.model and located(group.model)) for group in topology.frozen)
    return dataclasses.replace(topology, config=cfg, frozen=frozen)


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
    """
    with here.everywhere(topology, logs) as hosts:
        slots = reserve(topology, tell, is_left=here.is_left)
        require_ready(slots.nodes)
        trained = [f"trainer-{rank}" for rank in range(len(slots.trainers))]
        names = [[process_name(index, rank) for rank in range(len(nodes))] for index, nodes in enumerate(slots.engines)]
        left = left_actors(trained, [*chain(*names)], tell) if here.is_left else {}
        run = RunInfo(_for_actors(topology), logs, new_key(), here.mark, slots.nodes == {this_node()})

        def member(name: str, kind: type[Actor], slot: Slot, *place: int, run: RunInfo = run) -> Member:
            def make() -> Any:
                options = slots.options(slot) | lasting(topology.cluster, new_name(name))
                return remote(kind, **options).remote(run, *place)

            return Member(name, left.get(name), make)

        def rank_of(topology: Topology, rank: int, slot: Slot) -> Member:
            its = dataclasses.replace(run, topology=topology)
            return member(f"trainer-{rank}", TrainerActor, slot, rank, topology.cluster.num_trainers, run=its)

        trainers = [rank_of(run.topology, rank, slot) for rank, slot in enumerate(slots.trainers)]
        processes = [
            [member(names[index][rank], EngineActor, slot, index, rank) for rank, slot in enumerate(nodes)]
            for index, nodes in enumerate(slots.engines)
        ]
        engine_processes = [*chain(*processes)]
        for each in (*trainers, *engine_processes):
            assert each.make, "see above"
            each.actor = each.actor or each.make()
        fewer = FewerHosts(run.topology, trainers, engine_processes, slots.trainers, rank_of)
        calls = Calls(
            trainers,
            engine_processes,
            logs,
            hosts,
            lambda what, whom: tell(Waiting(what, whom, logs)),
            None if topology.shares_gpus else HostReturn(topology.cluster, slots.places, hosts, fewer),
        )
        engines = Engines(calls, topology, processes, frozen)
        try:
            yield Cluster(topology, calls, TrainerGroup(calls, topology.cluster), engines)
        finally:
            engines.stop()
