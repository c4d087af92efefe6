"""What a process records of its time, and that it records nothing unasked."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from slime.observe import spans
from slime.observe.spans import span
from slime.observe.stopwatch import Stopwatch


@pytest.fixture(autouse=True)
def _stop() -> Iterator[None]:
    yield
    spans.stop()


def recorded(folder: Path, process: str) -> list[dict]:
    return [json.loads(line) for line in (folder / f"spans/{process}.jsonl").read_text().splitlines()]


def test_nothing_is_recorded_before_and_after(tmp_path: Path) -> None:
    with span("before"):
        spans.record(tmp_path, "driver")
    with span("within"):
        pass
    spans.stop()
    with span("after"):
        pass
    assert [line["name"] for line in recorded(tmp_path, "driver")] == ["within"]


def test_phases_of_a_stopwatch_are_spans_also_where_they_raise(tmp_path: Path) -> None:
    spans.record(tmp_path, "trainer-0")
    watch = Stopwatch()
    with pytest.raises(ZeroDivisionError), watch("train"), span("forward", micro_batch=2):
        _ = 1 / 0
    inner, outer = recorded(tmp_path, "trainer-0")
    assert (inner["name"], inner["micro_batch"], outer["name"], outer["track"]) == ("forward", 2, "train", "")
    assert outer["begin"] <= inner["begin"]
    assert inner["seconds"] <= outer["seconds"] < 10


def test_a_later_session_adds_to_the_file(tmp_path: Path) -> None:
    for name in ("first", "second"):
        spans.record(tmp_path, "driver")
        with span(name, "http://127.0.0.1:1"):
            pass
        spans.stop()
    assert [(line["name"], line["track"]) for line in recorded(tmp_path, "driver")] == [
        ("first", "http://127.0.0.1:1"),
        ("second", "http://127.0.0.1:1"),
    ]
