"""The order in which trainers and engines move on shared devices, and that nothing moves where all fits."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from slime.cluster.device_sharing import DeviceSharing


class Recorder:
    """Stands for the cluster: notes what it is asked to do, and what the devices hold after it."""

    def __init__(self, *, takes_turns: bool = True) -> None:
        self.topology = SimpleNamespace(takes_turns=takes_turns)
        self.calls: list[str] = []
        self.held = {"trainer"}
        self.are_whole, self.may_start = True, False

    def close(self) -> None:
        """Who starts again holds all there is to hold."""
        self.calls.append("close")
        if not self.are_whole and self.may_start:
            assert "trainer" not in self.held, "they do not fit together"
            self.are_whole, self.held = True, {"weights", "kv_cache"}
        self.may_start = False

    @property
    def engines(self) -> Recorder:
        return self

    def memory(self, action: str, *tags: str) -> None:
        self.calls.append(f"{action} {' '.join(tags)}")
        assert action == "release" or not set(tags) & self.held
        self.held = self.held - set(tags) if action == "release" else self.held | set(tags)
        assert self.held != {"trainer", "weights", "kv_cache"}, "they do not fit together"

    @property
    def trainers(self) -> Recorder:
        return self

    def all(self, method: Callable[..., Any]) -> list[Any]:
        return [getattr(self, method.__name__)()]

    def trim(self) -> None:
        self.calls.append("trim")

    def offload(self) -> dict[str, float]:
        self.calls.append("offload")
        self.held = self.held - {"trainer"}
        return {"residue/allocated_gib": 0.5}

    def onload(self) -> None:
        self.calls.append("onload")
        self.held = self.held | {"trainer"}
        assert self.held != {"trainer", "weights", "kv_cache"}, "they do not fit together"


HELD = {
    "for_training": {"trainer"},
    "for_weights": {"trainer", "weights"},
    "for_generation": {"weights", "kv_cache"},
}


@pytest.mark.parametrize("last", HELD)
@pytest.mark.parametrize("first", HELD)
def test_every_turn_follows_every_other(first: str, last: str) -> None:
    cluster: Any = Recorder()
    sharing = DeviceSharing(cluster)
    for turn in (first, last):
        metrics = getattr(sharing, turn)()
        assert cluster.held == HELD[turn]
        assert [value >= 0 for name, value in metrics.items() if name.startswith("seconds/")] == [True]
    calls = len(cluster.calls)
    getattr(sharing, last)()
    assert len(cluster.calls) == calls, "who is there already does not move"


MOVES = [], [], ["close", "release kv_cache", "onload"]


@pytest.mark.parametrize(("turn", "moves"), list(zip(HELD, MOVES, strict=True)))
def test_reading_moves_no_more_than_the_trainers(turn: str, moves: list[str]) -> None:
    cluster: Any = Recorder()
    sharing = DeviceSharing(cluster)
    getattr(sharing, turn)()
    cluster.calls.clear()
    sharing.for_saving()
    assert cluster.calls == moves


def test_a_step() -> None:
    cluster: Any = Recorder()
    sharing = DeviceSharing(cluster)
    sharing.for_weights()
    assert sharing.for_generation()["residue/allocated_gib"] == 0.5
    sharing.for_training()
    assert cluster.calls == [
        "trim",
        "resume weights",
        "offload",
        "resume kv_cache",
        "close",
        "release kv_cache",
        "onload",
        "release weights",
    ]


def test_nothing_moves_where_all_fits() -> None:
    cluster: Any = Recorder(takes_turns=False)
    sharing = DeviceSharing(cluster)
    assert [getattr(sharing, turn)() for turn in HELD] == [{}, {}, {}]
    assert cluster.calls == []


@pytest.mark.parametrize("turn", HELD)
def test_an_engine_that_died_starts_while_trainers_are_away(turn: str) -> None:
    """`Recorder.close` refuses it at other times. As engines generate it may start at once."""
    cluster: Any = Recorder()
    sharing = DeviceSharing(cluster)
    getattr(sharing, turn)()
    assert cluster.may_start is (turn == "for_generation")
    cluster.are_whole = False
    sharing.for_weights()
    assert cluster.are_whole
    assert not cluster.may_start
    assert cluster.held == HELD["for_weights"]


def test_one_that_dies_as_trainers_train_waits_for_the_next_publish() -> None:
    cluster: Any = Recorder()
    sharing = DeviceSharing(cluster)
    cluster.are_whole = False
    sharing.for_training()
    assert cluster.calls == []
    sharing.let_in()
    assert cluster.calls == ["offload", "close", "release kv_cache weights", "onload"]
    assert cluster.held == HELD["for_training"]


@pytest.mark.parametrize("turn", HELD)
def test_trainers_that_begin_again_find_their_devices_free(turn: str) -> None:
    cluster: Any = Recorder()
    sharing = DeviceSharing(cluster)
    getattr(sharing, turn)()
    cluster.calls.clear()
    cluster.held -= {"trainer"}  # they were killed
    sharing.begin_again()
    assert cluster.held == set()
    cluster.held = {"trainer"}
    sharing.for_training()
    assert cluster.calls == ["close", "release kv_cache weights"]
