"""Engines that are forked: which may be, and when they end."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil
import pytest
import torch

from slime_testing.engines import running_engine
from slime_testing.forked import _of_import, serving
from tests.waiting import until


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA does not survive a fork")
def test_an_engine_ends_with_who_asked_for_it(tiny_model: Path, tmp_path: Path) -> None:
    serving.cache_clear()  # one that began in another test's environment forks nothing
    with running_engine(tiny_model, tmp_path / "engine.log") as engine:
        process = psutil.Process(engine.pid)
        family = [process, *process.children(recursive=True)]
        parent = process.parent()
        assert parent
        assert "slime_testing.forked" in parent.cmdline()
        asked = engine._process  # type: ignore[attr-defined]
        asked._connection.shutdown(socket.SHUT_RDWR)  # as the kernel does for a process that has ended
        until(lambda: not any(map(lives, family)), told=lambda: family)


def lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # it ends between the two
        return False


def test_what_an_import_reads_of_an_environment() -> None:
    """With more or less of that an engine is not forked."""
    own = {"SGLANG_HOST_IP": "127.0.0.1", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "9", "PYTHONPATH": "site"}
    assert _of_import({**own, "TMPDIR": "scratch", "HF_HUB_OFFLINE": "1", "SGLANG_RETURN_ORIGINAL_LOGPROB": "0"}) == {
        "HF_HUB_OFFLINE": "1",
        "SGLANG_RETURN_ORIGINAL_LOGPROB": "0",
    }
