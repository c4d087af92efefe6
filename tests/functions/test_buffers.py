"""Buffer policies that are functions or classes of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.errors import SlimeError
from slime.functions.buffers import own_buffer
from slime_testing.buffers import check_buffer, unfinished

FILE = """
from slime.sampling.buffer import FifoBuffer

def pop_first(args, rollout_id, buffer, num_samples):
    number = min(len(buffer), num_samples)
    samples = buffer[:number]
    del buffer[:number]
    return samples

def newest(groups, count, version):
    return groups[-count:] if version > 1 else []

def by_length(args, rollout_id, buffer, num_samples):
    buffer[:] = [group for group in buffer if len(group) > args.least]
    return buffer[:num_samples]

def first(waiting, number):
    return [*waiting][:number]

class Last(FifoBuffer):
    def take(self, count, version):
        return [self._groups.pop() for _ in range(min(count, len(self._groups)))]

def too_many(groups, count):
    return groups

def twice(groups, count):
    return groups[:1] * 2

def others(groups, count):
    return [1]

def breaks(groups, count):
    return groups["first"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my.py"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("name", ["pop_first", "newest", "first", "Last"])
def test_a_function_chooses_the_groups_that_go_on(file: Path, name: str) -> None:
    check_buffer("function", {"path": f"{file}:{name}"})


def test_groups_come_out_as_the_function_says(file: Path) -> None:
    groups = [unfinished(f"0/{number}", 1) for number in range(4)]
    taken = {}
    for name in ("pop_first", "newest"):
        buffer = own_buffer(path=f"{file}:{name}")
        assert all(buffer.put(group, 1).keep for group in groups)
        taken[name] = [group.id for group in buffer.take(2, 2)]
        assert len(buffer) == 2
    assert taken == {"pop_first": ["0/0", "0/1"], "newest": ["0/2", "0/3"]}


def test_groups_that_a_function_deletes_are_counted(file: Path) -> None:
    buffer = own_buffer(path=f"{file}:by_length", arguments={"least": 3})
    for number in range(3):
        buffer.put(unfinished(f"0/{number}", 1), 1)
    assert (buffer.take(2, 1), len(buffer), buffer.dropped) == ([], 0, {"deleted": 3})  # type: ignore[attr-defined]
    kept = own_buffer(path=f"{file}:by_length", arguments={"least": 2})
    kept.put(unfinished("0/3", 1), 1)
    assert ([group.id for group in kept.take(2, 1)], kept.dropped) == (["0/3"], {})  # type: ignore[attr-defined]


def test_what_is_no_choice_of_groups_is_told(file: Path) -> None:
    for name, said in {
        "too_many": "not a list of at most 1 of the groups that it got, each once",
        "twice": "not a list of at most 1 of the groups that it got",
        "others": r"returned \[1\], not a list of at most 1",
        "breaks": r"raised TypeError: list indices must be integers or slices, not str \(my.py:34\)",
    }.items():
        buffer = own_buffer(path=f"{file}:{name}")
        for number in range(2):
            buffer.put(unfinished(f"0/{number}", 1), 1)
        with pytest.raises(SlimeError, match=said):
            buffer.take(1, 1)
        assert len(buffer) == 2, "nothing is lost"
