"""Which engines that die are started again; `tests/test_run_engines_killed.py` has real ones."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from slime.cluster.watch import Member
from slime.compose.compose import examine
from slime.errors import Death
from slime.events import EngineBack, EngineLost, Event, Events
from slime.net import Endpoint, Secret
from slime.reward.engines import FrozenEngines
from slime.topology.topology import Topology, read_topology
from slime_sglang.returning.restarts import Restarts, may_return, why_not

DEATH = Death("was killed by SIGKILL", where="engine-0 (pid 7)", todo="Read its log.")


def topology(cluster: str = "local", *words: str) -> Topology:
    return read_topology(examine(["+model=glm4-tiny", f"+cluster={cluster}", *words]).cfg)


class Processes:
    """Of two engines that get weights, and a frozen one; their starts never end."""

    def __init__(self) -> None:
        self.num_trained, self.may_start = 2, True
        self.frozen = FrozenEngines(["judge"])
        self.frozen.found(0, Endpoint("http://host:7", Secret("its own")))
        self.new: set[int] = set()
        self.endpoints = [Endpoint(f"http://host:{port}", Secret("any")) for port in (1, 2)]
        self.begun: list[int] = []
        self.ended: list[int] = []

    def __len__(self) -> int:
        return 3

    def is_new(self, index: int) -> bool:
        return index in self.new

    def index_of(self, member: Member) -> int | None:
        return {"engine-0": 0, "engine-1": 1, "engine-2": 2}.get(member.name)

    def processes(self, index: int) -> list[Member]:
        return [Member(f"engine-{index}", None)]

    def end(self, index: int) -> None:
        self.ended.append(index)

    def begin_again(self, index: int) -> list[tuple[Any, Any]]:
        self.begun.append(index)
        return []


class Watched:
    """Who is looked after no more."""

    def __init__(self) -> None:
        self.left: list[str] = []

    def leave(self, members: list[Member]) -> None:
        self.left += [member.name for member in members]


def restarts_of(asked: Topology, *subscribers: Any) -> tuple[Restarts, Any, Any]:
    processes: Any = Processes()
    watched: Any = Watched()
    return Restarts(asked, watched, processes, Events(*subscribers).publish), processes, watched


def test_each_engine_has_its_budget_within_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = [1000.0], list[Event]()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    asked = topology("local", "rollout.restarts=2", "rollout.restart_window_s=100")
    restarts, processes, watched = restarts_of(asked, told.append)

    def dies(name: str, at: float) -> bool:
        now[0] = 1000 + at
        for engine in restarts._engines:
            engine.starting = None  # it is up again
        return restarts.spare(Member(name, None), replaced(name))

    assert [dies("engine-0", 0), dies("engine-0", 50), dies("engine-0", 99)] == [True, True, False]
    assert dies("engine-1", 99), "the other one has a budget of its own"
    assert dies("engine-0", 101), "the first death counts no more"
    assert not dies("engine-0", 102)
    assert not dies("trainer-0", 103)
    assert dies("engine-1", 104)
    assert restarts.spare(Member("engine-1", None), DEATH), "both its processes end, and it starts already"
    assert processes.begun == [0, 0, 1, 0, 1]
    assert watched.left == ["engine-0", "engine-0", "engine-1", "engine-0", "engine-1"]
    counted = [(event.engine, event.restart) for event in told if isinstance(event, EngineLost) and event.of == 2]
    assert counted == [("engine-0", 1), ("engine-0", 2), ("engine-1", 1), ("engine-0", 2), ("engine-1", 2)]
    assert (restarts.lost(), restarts.empty(), restarts.num_begun) == ([0, 1], [0], 5)


def replaced(name: str) -> Death:
    return Death(DEATH.what, where=name, todo=DEATH.todo)


def test_an_engine_that_died_again_has_no_weights() -> None:
    restarts, processes, _ = restarts_of(topology())
    old = processes.endpoints[0]
    assert not restarts.has_weights(0, old), "it was never lost"
    assert restarts.spare(Member("engine-0", None), DEATH)
    assert not restarts.has_weights(0, old), "it starts"
    assert not restarts.has_weights(0, replace(old, url="http://host:3"))
    assert restarts.lost() == [0]


def test_an_engine_that_dies_as_the_run_starts_is_missed_by_nobody() -> None:
    told = list[Event]()
    restarts, processes, _ = restarts_of(topology("local", "rollout.restarts=2"), told.append)
    processes.new = {0, 2}
    assert restarts.spare(Member("engine-0", None), DEATH)
    assert restarts.spare(Member("engine-2", None), DEATH)
    assert restarts.lost() == [], "it gets weights with the others, at the first publish"
    assert processes.frozen.num_lost == 0
    restarts._is_back(0, processes.endpoints[0])
    assert [event.is_new for event in told if isinstance(event, EngineBack)] == [True]
    processes.new.clear()
    restarts._engines[0].starting = None  # it is up
    assert restarts.spare(Member("engine-0", None), DEATH)
    assert restarts.lost() == [0]
    restarts._engines[0].starting = None
    assert not restarts.spare(Member("engine-0", None), DEATH), "both counted"


@pytest.mark.parametrize("words", [["local"], ["h200x2"]])
def test_a_frozen_engine_comes_back_also_beside_engines_that_do_not(words: list[str]) -> None:
    restarts, processes, _ = restarts_of(topology(*words, "rollout.restarts=1"))
    assert restarts.spare(Member("engine-2", None), DEATH)
    assert (processes.begun, processes.frozen.num_lost, processes.frozen.endpoints) == ([2], 1, [None])
    assert restarts.lost() == restarts.empty() == [], "nobody hands it weights, nor samples from it"
    assert restarts.reachable() == processes.endpoints
    restarts._engines[2].starting = None  # it is up again
    assert not restarts.spare(Member("engine-2", None), DEATH), "one restart is all"


def test_an_engine_waits_for_trainers_to_leave_its_devices_and_a_frozen_one_does_not() -> None:
    restarts, processes, watched = restarts_of(topology("local", "cluster.placement=colocated"))
    processes.may_start = False
    assert restarts.spare(Member("engine-0", None), DEATH)
    assert restarts.spare(Member("engine-0", None), DEATH), "it is known"
    assert restarts.spare(Member("engine-2", None), DEATH)
    assert (processes.ended, processes.begun, watched.left) == ([0, 2], [2], ["engine-0", "engine-2"])
    assert (restarts.lost(), restarts.empty(), restarts.reachable()) == ([0], [], [None, processes.endpoints[1]])
    assert not restarts.has_weights(0, processes.endpoints[0])
    processes.may_start = True
    restarts._start(0, restarts._engines[0])
    restarts._start(0, restarts._engines[0])
    assert processes.begun == [2, 0]


@pytest.mark.parametrize(
    ("cluster", "words", "sentence"),
    [
        ("local-pd", [], ""),
        ("local", ["cluster.placement=colocated"], ""),
        ("local", ["cluster.placement=colocated", "rollout.sglang.enable_memory_saver=false"], ""),
        ("local-hosts", [], ""),
        ("h200x2", ["rollout.sglang.enable_memory_saver=true"], ""),
        ("h200x2", [], "Engines that stay on devices beside trainers are not started again."),
    ],
)
def test_what_is_not_started_again_says_so(cluster: str, words: list[str], sentence: str) -> None:
    asked = topology(cluster, *words)
    assert why_not(asked) == sentence
    assert may_return(asked) is (not sentence)
    restarts, processes, _ = restarts_of(asked)
    assert restarts.why_not == sentence
    assert restarts.spare(Member("engine-0", None), DEATH) is (not sentence)
    assert processes.begun == [0] * (not sentence)
