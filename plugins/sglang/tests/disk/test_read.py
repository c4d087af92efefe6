"""Files of a version are read whole, and those that changed are named."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from slime.digest import facts_of
from slime.errors import SlimeError
from slime_sglang.disk.receive import read_checked


@pytest.mark.parametrize("size", [0, 1, 2**20, 2**21 + 3])
def test_a_file_is_read_into_memory_of_its_size(tmp_path: Path, size: int) -> None:
    path, data = tmp_path / "file", random.Random(5).randbytes(size)
    path.write_bytes(data)
    target = bytearray(size)
    read_checked(path, facts_of(path), target)
    assert target == data


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"x" + data[1:]])
def test_a_file_that_changed_is_named(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path, data = tmp_path / "file", bytes(2**20 + 5)
    path.write_bytes(data)
    facts = facts_of(path)
    path.write_bytes(change(data))
    with pytest.raises(SlimeError, match=f"^{path}: the file is damaged"):
        read_checked(path, facts, bytearray(len(data)))
    path.unlink()
    with pytest.raises(SlimeError, match=f"^{path}: the file is missing"):
        read_checked(path, facts, bytearray(len(data)))
