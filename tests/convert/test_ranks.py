"""A rank that fails ends the others, and what it says arrives."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from slime.convert.ranks import started
from slime.errors import SlimeError

pytestmark = pytest.mark.slow


def fail(rank: int, world_size: int, store: Any, way: str) -> None:
    """Rank 1 fails when rank 0 is there, which would wait for ever."""
    assert world_size == 2
    if rank == 0:
        store.set("there", b"yes")
        time.sleep(1000)
    store.get("there")
    if way == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise SlimeError("the tensor 'x' is missing", todo="Check it.")


@pytest.mark.parametrize(
    ("way", "message"),
    [("raises", "the tensor 'x' is missing"), ("killed", "rank 1 of the conversion ended with -9")],
)
def test_failure_of_a_rank_is_reported(way: str, message: str) -> None:
    with pytest.raises(SlimeError, match=message):
        started(fail, 2, lambda: None, way)
