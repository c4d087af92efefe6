"""The engines of a run, each a process of SGLang's on every host that it takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

from slime.cluster.actors import EngineActor
from slime.cluster.calls import Calls
from slime.cluster.watch import WATCH_S, Member
from slime.engines.scratch import Rendezvous
from slime.errors import SlimeError
from slime.net import Endpoint
from slime.reward.engines import FrozenEngines
from slime.topology.topology import Topology

WEIGHTS, KV_CACHE = "weights", "kv_cache"
"""SGLang's tags of what an engine can release."""
STARTING = "starting engines"
AGAIN = "starting an engine again"
STOP_S = 3.0
"""How long engines have to end by themselves; one that is still starting is killed with its actor instead."""


class Engines:
    """Starts all processes; asks the first of each engine, which speaks for its others.

    Args:
        processes: of each engine, frozen ones last, the actors that keep them, by `node_rank`.
        frozen: learns where frozen engines are.

    Attributes:
        num_trained: engines that get weights; the others are frozen.
        may_start: those that get weights may start again now. False: trainers have their devices.
    """

    def __init__(
        self,
        calls: Calls,
        topology: Topology,
        processes: Sequence[Sequence[Member]],
        frozen: FrozenEngines | None = None,
    ) -> None:
        self._calls, self._topology, self._processes = calls, topology, processes
        self.num_trained, self.may_start = len(topology.group_of_engine), True
        self.frozen = frozen or FrozenEngines([group.name for group in topology.group_of_frozen])
        self._starting: dict[int, list[Any]] = {}
        self._found: dict[int, Endpoint] = {}

    @property
    def endpoints(self) -> list[Endpoint]:
        """Where each engine is that gets weights, once all are up; one that has died since, where it was last."""
        return [self._found[index] for index in range(self.num_trained)]

    def begin(self, devices: Sequence[str] = ()) -> None:
        """Start every process; they hold no weights until the first publish, but for frozen ones. Colocated, `devices`
        has the CUDA device of each trainer rank; otherwise Ray has given a process its own."""
        self._shares = shares = devices_beside(self._topology, devices)
        for index, (nodes, meeting) in enumerate(zip(self._processes, self._meetings(), strict=True)):
            self._starting[index] = [
                process.call(EngineActor.start, of_process, meeting)
                for process, of_process in zip(nodes, shares[index], strict=True)
            ]
            self._calls.watch_beside(dict(zip(self._starting[index], nodes, strict=True)), STARTING)

    def _meetings(self) -> list[Rendezvous | None]:
        """Where the processes of each engine find each other, if it has several."""
        firsts = [nodes[0] for nodes in self._processes if len(nodes) > 1]
        limit_s = self._topology.cluster.start_timeout_s
        met = iter(self._calls.all(firsts, "finding a port", limit_s, EngineActor.meet))
        return [next(met) if len(nodes) > 1 else None for nodes in self._processes]

    def end(self, index: int) -> None:
        """Stop what is left of an engine's processes."""
        import ray

        nodes = self._processes[index]
        for process, start in zip(nodes, self._starting.pop(index, []), strict=False):
            # One that waits for another of the engine does so as long as a start may take.
            process.has_died = process.has_died or not ray.wait([start], timeout=0)[0]
        for process in nodes:
            if process.has_died:
                ray.kill(process.actor)  # of which Ray may not know yet
                assert process.make, "engines can be made again"
                process.actor, process.has_died = process.make(), False
            process.call(EngineActor.stop)

    def begin_again(self, index: int) -> list[tuple[Any, Any]]:
        """Start all processes of an engine, which were ended.

        Returns:
            References for each process: to where it is, and to its endpoint.
        """
        nodes = self._processes[index]
        meeting = nodes[0].call(EngineActor.meet) if len(nodes) > 1 else None
        shares = zip(nodes, self._shares[index], strict=True)
        return [
            (process.call(EngineActor.check_in), process.call(EngineActor.start, of_process, meeting))
            for process, of_process in shares
        ]

    def __len__(self) -> int:
        return len(self._processes)

    def processes(self, index: int) -> Sequence[Member]:
        return self._processes[index]

    def index_of(self, member: Member) -> int | None:
        known = enumerate(self._processes)
        return next((index for index, nodes in known if member.name in [each.name for each in nodes]), None)

    def is_new(self, index: int) -> bool:
        """Whether an engine has its first start still to do, as far as is known: it has never had weights."""
        return index in self._starting

    def found(self, index: int, endpoint: Endpoint) -> None:
        self._found[index] = endpoint
        if index >= self.num_trained:
            self.frozen.found(index - self.num_trained, endpoint)

    def are_up(self) -> bool:
        """Whether `finish` would return now.

        Raises:
            SlimeError: an engine cannot start.
        """
        self._calls.look_beside()
        return not self._calls.num_beside

    def finish(self) -> None:
        """Wait until every process is up; raises as `are_up`."""
        import ray

        self._calls.wait_beside(STARTING, self._topology.cluster.start_timeout_s)
        for index, starts in self._starting.items():
            self.found(index, ray.get(starts[0]))
        self._starting.clear()

    @property
    def are_whole(self) -> bool:
        """True if every engine that gets weights is up, as far as is known."""
        return not self._first_processes(up=False)

    def _first_processes(self, *, up: bool) -> list[Member]:
        """The first one of each engine that gets weights and is up, or has died and is not up again."""
        trained = self._processes[: self.num_trained]
        return [nodes[0] for nodes in trained if any(map(self._calls.is_busy_beside, nodes)) is not up]

    def close(self) -> None:
        """Let no engine start again until it `may_start`; returns once those are up that had begun to.

        Raises:
            SlimeError: one cannot start.
        """
        while True:
            with self._calls.unwatched():
                if self.are_whole or not self.may_start:
                    self.may_start = False
                    return
            self._calls.tell(AGAIN, [process.name for process in self._first_processes(up=False)])
            time.sleep(WATCH_S)
            self._calls.look(AGAIN)

    def memory(self, action: Literal["release", "resume"], *tags: str) -> None:
        """Have every rank of the engines beside trainers release or resume the device memory behind SGLang's `tags`;
        but for what it holds or not already, and engines that have died and come back."""
        what, limit_s = f"{action} {' and '.join(tags)} of engines", self._topology.cluster.hang_timeout_s
        method = EngineActor.release_memory if action == "release" else EngineActor.resume_memory
        while True:
            asked = self._first_processes(up=True)
            try:
                self._calls.all(asked, what, limit_s, method, *tags)
                return
            except SlimeError:
                self._calls.look_closely(what)
                if not any(map(self._calls.is_busy_beside, asked)):
                    raise

    def stop(self) -> None:
        """Let engines remove their scratch folders; Ray, which ends all the rest, kills who would do it later."""
        import ray

        up = [process for process in chain(*self._processes) if not self._calls.is_busy_beside(process)]
        if stopping := [process.call(EngineActor.stop) for process in up]:
            ray.wait(stopping, num_returns=len(stopping), timeout=STOP_S)


def devices_beside(topology: Topology, devices: Sequence[str]) -> list[list[list[str]]]:
    """Of each engine's processes the devices of the trainer ranks beside it, frozen ones' last; empty where they share
    none. `devices`: of each trainer rank."""
    found: list[list[list[str]]] = [[[] for _ in nodes] for nodes in topology.engine_places]
    for index, ranks in enumerate(topology.engine_ranks if topology.shares_gpus else ()):
        beside = iter([devices[rank] for rank in ranks])
        found[index] = [[next(beside) for _ in place.devices] for place in topology.engine_places[index]]
    return found
