"""Which ranks are named as slow, and when."""

from __future__ import annotations

import json
import logging
import statistics
from pathlib import Path

import pytest

from slime.cluster.paces import Paces

HOSTS = ["a", "a", "b", "b"]
EVEN, SLOW = [1.0, 1.1, 0.9, 1.0], [1.0, 1.1, 2.0, 1.9]


def paces(folder: Path) -> Paces:
    made = Paces([f"trainer-{rank}" for rank in range(4)], folder)
    made.begin(HOSTS)
    return made


def test_a_host_is_named_once_whose_ranks_are_slow_in_each_of_five_steps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = paces(tmp_path)
    for seconds in [*[SLOW] * 4, EVEN, *[SLOW] * 4]:
        made.step(seconds)
    assert caplog.messages == []
    made.step(SLOW)
    made.step(SLOW)
    (told,) = caplog.messages
    assert told.startswith("trainer-2 and 1 more on host b: slow in each of 5 steps: its own passes took 2 s ")
    assert told.endswith("cluster.exclude=[b].")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    rows = json.loads((tmp_path / "ranks.json").read_text())
    assert [(row["name"], row["host"], row["seconds"], row["is_slow"]) for row in rows] == [
        ("trainer-0", "a", 1.0, False),
        ("trainer-1", "a", 1.1, False),
        ("trainer-2", "b", 2.0, True),
        ("trainer-3", "b", 1.9, True),
    ]


def test_one_of_two_ranks_is_compared_with_the_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Paces(["trainer-0", "trainer-1"], tmp_path)
    made.begin(["a", "b"])
    for _ in range(5):
        made.step([1.0, 1.6])
    (told,) = caplog.messages
    assert told.startswith("trainer-1 on host b: ")
    assert "1.6 times the median of the others" in told


def test_milliseconds_are_no_reason_to_name_a_rank(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = paces(tmp_path)
    for _ in range(9):
        made.step([own / 10 for own in SLOW])
    assert caplog.messages == []


def test_what_the_metrics_say(tmp_path: Path) -> None:
    found = paces(tmp_path).step(SLOW)
    expected = {"seconds_mean": statistics.mean(SLOW), "seconds_max": 2.0, "slowest": 2}
    assert found == pytest.approx({f"trainers/{name}": value for name, value in expected.items()})


def test_a_rank_alone_is_compared_with_nobody(tmp_path: Path) -> None:
    made = Paces(["trainer-0"], tmp_path)
    made.begin(["a"])
    assert made.step([1.0]) == {}
    assert not (tmp_path / "ranks.json").exists()


def test_ranks_that_start_again_are_looked_at_afresh(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = paces(tmp_path)
    for _ in range(4):
        made.step(SLOW)
    made.begin(HOSTS)
    for _ in range(4):
        made.step(SLOW)
    assert caplog.messages == []
