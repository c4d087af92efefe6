"""Copies of the trainers' state in the memory of hosts, to which trainers that start again return inside the run.

A copy is what a checkpoint is, in files of its own: each rank's on its host, and once more on the next host of the run.
It counts once every rank has said that all of its files are there; until then the copy before it stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime import driver_state
from slime.cluster.actors import TrainerActor
from slime.cluster.calls import Calls
from slime.cluster.copy_keeper import CopyKeeper, Sizes, Sources
from slime.cluster.placement import on_node
from slime.config.schema import ClusterConfig

ANSWER_S = 10.0
"""How long keepers have to answer, who do little else; one that does not has ended, or its host has."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Copy:
    """A whole copy.

    Attributes:
        state: the driver's, as it was.
    """

    step: int
    state: bytes
    sources: Sources

    def driver_state(self) -> dict[str, Any]:
        return driver_state.loads(self.state)


class Copies:
    """The copies of one run; made when the first one is due.

    Args:
        mark: of the run, in the names of everything temporary that it leaves on a host.
    """

    def __init__(self, calls: Calls, limits: ClusterConfig, mark: str) -> None:
        self._calls, self._limit_s, self._mark = calls, limits.hang_timeout_s, mark
        self._keepers: dict[str, Any] = {}  # by Ray's id of the host
        self._places: dict[str, Path] = {}  # likewise, their folders
        self._states: dict[int, tuple[bytes, int]] = {}  # the driver's, by step, and the number of ranks
        self._pending: int | None = None
        self._whole: int | None = None
        self._has_failed = self._has_told = False

    def may_begin(self, step: int) -> bool:
        """Whether a copy of that step may begin: not as long as the one before is on its way, nor after one has failed.
        A warning tells either, the first time."""
        if self._has_failed:
            return False
        if self._is_settled():
            return True
        if self._pending is not None and not self._has_told:
            self._has_told = True
            then = "So is each for which steps are too fast; a larger train.checkpoint.in_memory_every asks for fewer."
            log.warning("the copy of step %d is left out: that of step %d is on its way. %s", step, self._pending, then)
        return False

    def begin(self, step: int, state: Mapping[str, Any]) -> None:
        """Have ranks copy what they hold, which is whole when they go on; files are written meanwhile."""
        for _ in range(2):  # a keeper that was killed has another in its place
            nodes = self._attend()
            begun = self._ask(nodes, lambda keeper: keeper.begin.remote(step, self._whole))
            if begun.keys() == {*nodes}:
                break
        else:
            return  # a host is about to be found lost
        if fault := next(filter(None, begun.values()), ""):
            self._fail(step, fault)
            return
        self._states = {each: kept for each, kept in self._states.items() if each == self._whole}
        self._states[step] = driver_state.dumps(state), len(self._calls.trainers)
        others = [self._keepers[node] for node in (*nodes[1:], nodes[0])] if len(nodes) > 1 else [None]
        beside = dict(zip(nodes, others, strict=True))
        calls = {
            rank.call(TrainerActor.begin_copy, self._places[rank.node] / str(step), beside[rank.node]): rank
            for rank in self._calls.trainers
        }
        self._calls.wait(calls, "begin_copy", self._limit_s)
        self._pending = step

    def newest(self) -> Copy | None:
        """The newest copy of which all files are on some host that answers; None: there is none."""
        if not self._states:
            return None
        found = self._ask(self._keepers, lambda keeper: keeper.held.remote())
        for step in sorted(self._states, reverse=True):
            files, ranks = dict[str, tuple[Any, int]](), set[int]()
            for node, held in found.items():
                for rank, sizes in held.get(step, dict[int, Sizes]()).items():
                    ranks.add(rank)
                    files |= {name: (self._keepers[node], size) for name, size in sizes.items()}
            state, num_ranks = self._states[step]
            if len(ranks) == num_ranks:
                return Copy(step, state, Sources(step, files))
        return None

    def load(self, copy: Copy) -> None:
        """Have ranks, which are new, take a copy up."""
        self.forget(copy.step)
        self._attend()
        calls = {
            rank.call(TrainerActor.load_copy, self._places[rank.node] / str(copy.step), copy.sources): rank
            for rank in self._calls.trainers
        }
        self._calls.wait(calls, "load_copy", self._limit_s)

    def forget(self, kept: int | None) -> None:
        """Ranks are new: of copies only that of step `kept` counts, if any does."""
        self._pending, self._whole, self._has_failed = None, kept, False
        self._states = {step: state for step, state in self._states.items() if step == kept}

    def end(self) -> None:
        """Give the memory back."""
        import ray

        for keeper in self._keepers.values():
            ray.kill(keeper)
        self._keepers = {}

    def _is_settled(self) -> bool:
        """Whether no copy is on its way."""
        if self._pending is None:
            return True
        faults = self._calls.all(self._calls.trainers, "copied", self._limit_s, TrainerActor.copied)
        if None in faults:
            return False
        step, self._pending = self._pending, None
        if fault := next(filter(None, faults), ""):
            self._fail(step, fault)
        else:
            self._whole = step
        return not fault

    def _fail(self, step: int, fault: str) -> None:
        self._has_failed = True
        then = "No more are made, and trainers that die return to the newest checkpoint. Is /dev/shm full?"
        log.warning("the copy of step %d in host memory failed: %s. %s", step, fault, then)

    def _attend(self) -> list[str]:
        """Have a keeper on each host of trainers, and on no other; returns the hosts, in the order of their ranks."""
        import ray

        nodes = list(dict.fromkeys(rank.node for rank in self._calls.trainers))
        self._keepers = {node: keeper for node, keeper in self._keepers.items() if node in nodes}
        new = [node for node in nodes if node not in self._keepers]
        for node in new:
            self._keepers[node] = ray.remote(CopyKeeper).options(**on_node(node)).remote(self._mark)
        self._places |= self._ask(new, lambda keeper: keeper.place.remote(), self._limit_s)
        return nodes

    def _ask(self, nodes: Iterable[str], question: Callable[[Any], Any], limit_s: float = ANSWER_S) -> dict[str, Any]:
        """The answers of keepers by host; of one that has ended none, and it is forgotten."""
        import ray

        asked = {question(self._keepers[node]): node for node in nodes if node in self._keepers}
        found = dict[str, Any]()
        if asked:
            ray.wait(list(asked), num_returns=len(asked), timeout=limit_s)
        for ref, node in asked.items():
            try:
                found[node] = ray.get(ref, timeout=0)
            except ray.exceptions.RayError:
                ray.kill(self._keepers.pop(node))
        return found
