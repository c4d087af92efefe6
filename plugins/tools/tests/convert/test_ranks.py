"""A rank that fails ends the others, and what it says arrives."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from slime.errors import SlimeError
from slime_tools.convert.hosts import started

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


def meet(rank: int, world_size: int, store: Any) -> None:
    """Rank 1 fails while rank 0 waits for it in a collective, as Megatron-core's are."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    if rank == 1:
        raise SlimeError("the layers do not fit", todo="Change the layout.")
    dist.barrier()


def test_the_other_ranks_say_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SlimeError, match="the layers do not fit"):
        started(meet, 2, lambda: None)
    assert "Traceback" not in capfd.readouterr().err
