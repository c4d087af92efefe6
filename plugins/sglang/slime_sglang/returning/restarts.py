"""Engines that have died, and are started again: who of them may, and how far each is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from slime.cluster.calls import Calls
from slime.cluster.engines import AGAIN, Engines
from slime.cluster.watch import Member, died
from slime.errors import Death, SlimeError
from slime.events import EngineBack, EngineLost, Event
from slime.net import Endpoint
from slime.topology.placement import process_name
from slime.topology.topology import Topology

LATE_S = 30.0
"""Beyond `cluster.start_timeout_s`, which the start of a server keeps itself: for its actor to come up."""


def why_not(topology: Topology) -> str:
    """Why engines of this run are never started again; empty: they are."""
    if topology.shares_gpus and not topology.takes_turns:
        return "Engines that stay on devices beside trainers are not started again."
    return ""


def may_return(topology: Topology) -> bool:
    """Whether an engine of this run that dies is started again."""
    return topology.config.rollout.restarts > 0 and not why_not(topology)


@dataclass
class _Engine:
    """One engine.

    Attributes:
        deaths: when they were seen, in seconds of `time.monotonic`; those that count.
        starting: what `Engines.begin_again` returned; None: it does not start.
        begun_at: when that was, in seconds of `time.monotonic`.
        waits: it starts once trainers have left its devices.
        is_lost: it takes no requests: it starts, or has no weights yet.
        is_new: it has not been up yet, and nobody has missed it.
    """

    deaths: deque[float] = field(default_factory=deque)
    starting: list[tuple[Any, Any]] | None = None
    begun_at: float = 0.0
    waits: bool = False
    is_lost: bool = False
    is_new: bool = False

    @property
    def is_up(self) -> bool:
        return self.starting is None and not self.waits


class Restarts:
    """Starts engines again, under the budget of `rollout.restarts`. A `slime.cluster.calls.Restarting`: every call that
    waits asks it, in whichever thread, one after the other.

    Attributes:
        num_begun: starts so far.
        seconds: from deaths to the first requests after them, so far.
    """

    def __init__(self, topology: Topology, calls: Calls, engines: Engines, tell: Callable[[Event], None]) -> None:
        cfg = topology.config.rollout
        self.why_not = why_not(topology)
        self._budget, self._budget_of_frozen = cfg.restarts if may_return(topology) else 0, cfg.restarts
        self._window_s, self._start_s = cfg.restart_window_s, topology.cluster.start_timeout_s
        self._calls, self._processes, self._tell = calls, engines, tell
        self._engines = [_Engine() for _ in range(len(engines))]
        self.num_begun, self.seconds = 0, 0.0

    def spare(self, member: Member, death: Death) -> bool:
        """Whether the engine of `member` starts again: then it does from now on."""
        index = self._processes.index_of(member)
        if index is None:
            return False
        return not self._engines[index].is_up or self._begin(index, death)

    def advance(self) -> None:
        for index, engine in enumerate(self._engines):
            self._start(index, engine)
            if engine.starting is not None:
                self._look(index, engine)

    def lost(self) -> list[int]:
        """Engines that get weights, and take no requests."""
        return [index for index in range(self._processes.num_trained) if self._engines[index].is_lost]

    def empty(self) -> list[int]:
        """Engines that are up again, and have no weights yet."""
        return [index for index in self.lost() if self._engines[index].is_up]

    def reachable(self) -> list[Endpoint | None]:
        """Endpoint of each engine that gets weights; None: it is not up."""
        known = zip(self._engines, self._processes.endpoints, strict=False)
        return [endpoint if engine.is_up else None for engine, endpoint in known]

    def has_weights(self, index: int, endpoint: Endpoint) -> bool:
        """True if an engine that has got its weights at `endpoint` is back by that: it was lost, and has not died
        since."""
        engine = self._engines[index]
        if not engine.is_lost or not engine.is_up or self._processes.endpoints[index] != endpoint:
            return False
        self._is_back(index, endpoint)
        return True

    def _is_back(self, index: int, endpoint: Endpoint) -> None:
        engine = self._engines[index]
        seconds = time.monotonic() - engine.deaths[-1]
        self.seconds += seconds
        self._tell(EngineBack(process_name(index, 0), seconds, engine.is_new, endpoint.url))
        engine.is_lost = engine.is_new = False

    def _begin(self, index: int, death: SlimeError) -> bool:
        engine, now, frozen = self._engines[index], time.monotonic(), index - self._processes.num_trained
        budget = self._budget if frozen < 0 else self._budget_of_frozen
        while engine.deaths and now - engine.deaths[0] > self._window_s:
            engine.deaths.popleft()
        if len(engine.deaths) >= budget:
            return False
        engine.deaths.append(now)
        engine.is_new = engine.is_new or self._processes.is_new(index)
        if frozen >= 0 and not engine.is_lost and not engine.is_new:
            self._processes.frozen.lost(frozen)
        engine.is_lost = not engine.is_new
        self.num_begun += 1
        self._calls.leave(self._processes.processes(index))
        self._processes.end(index)
        engine.starting, engine.waits = None, True
        self._start(index, engine)
        why = f"{death.where}: {death.what}"
        self._tell(EngineLost(process_name(index, 0), why, len(engine.deaths), budget))
        return True

    def _start(self, index: int, engine: _Engine) -> None:
        """Start an engine that waits, unless trainers have its devices."""
        if engine.waits and (self._processes.may_start or index >= self._processes.num_trained):
            engine.waits, engine.begun_at = False, time.monotonic()
            engine.starting = self._processes.begin_again(index)

    def _look(self, index: int, engine: _Engine) -> None:
        """Take an engine that is up, and start one again that failed to."""
        import ray

        assert engine.starting is not None
        refs, nodes = list(chain(*engine.starting)), self._processes.processes(index)
        ready, waiting = ray.wait(refs, num_returns=len(refs), timeout=0)
        if fault := self._fault(engine.starting, ready, nodes) or self._late(engine, waiting, nodes):
            for node, (_, up) in zip(nodes, engine.starting, strict=True):
                node.has_died = node.has_died or up in waiting  # it waits for others, as long as a start may take
            if (engine.is_new and not isinstance(fault, Death)) or not self._begin(index, fault):
                raise fault
        elif not waiting:
            for node, (place, _) in zip(nodes, engine.starting, strict=True):
                node.node, node.host, node.pid = ray.get(place)
            endpoint = ray.get(engine.starting[0][1])
            self._processes.found(index, endpoint)
            engine.starting = None
            self._calls.join(nodes)
            if engine.is_new or index >= self._processes.num_trained:  # nobody hands it weights now
                self._is_back(index, endpoint)

    def _fault(
        self, starting: Sequence[tuple[Any, Any]], ready: Sequence[Any], nodes: Sequence[Member]
    ) -> SlimeError | None:
        import ray

        for node, refs in zip(nodes, starting, strict=True):
            for ref in refs:
                try:
                    ray.get(ref) if ref in ready else None
                except ray.exceptions.RayTaskError as error:
                    if isinstance(error.cause, SlimeError):
                        return error.cause
                    raise
                except ray.exceptions.RayError as error:
                    node.has_died = True
                    return died(node, error, AGAIN, self._calls.logs)
        return None

    def _late(self, engine: _Engine, waiting: Sequence[Any], nodes: Sequence[Member]) -> SlimeError | None:
        if not waiting or time.monotonic() < engine.begun_at + self._start_s + LATE_S:
            return None
        what = f"not up again after {self._start_s + LATE_S:g} s"
        todo = f"Read its log in {self._calls.logs}, or raise cluster.start_timeout_s."
        return SlimeError(what, where=nodes[0].name, todo=todo)
