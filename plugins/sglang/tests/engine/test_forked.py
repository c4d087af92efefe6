"""Engines that are forked: which may be, and when they end."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil
import pytest
import torch

from slime.net import LOOPBACK_SETTINGS
from slime_sglang.engine.driver.forked import ADDRESS, MODULE, fork, forking, read_by_imports
from slime_sglang.engine.driver.process import LAUNCHER, server_args
from slime_testing.engines import cpu_config, running_engine, topology_at
from slime_testing.forked import serving
from slime_tools.drill.processes import scratch_of
from tests.waiting import until

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA does not survive a fork")


@pytest.mark.slow
def test_an_engine_ends_with_who_asked_for_it(tiny_model: Path, tmp_path: Path) -> None:
    serving.cache_clear()  # one that began in another test's environment forks nothing
    with running_engine(tiny_model, tmp_path / "engine.log") as engine:
        process = psutil.Process(engine.pid)
        family = [process, *process.children(recursive=True)]
        parent, scratch = process.parent(), scratch_of(process)
        assert parent
        assert MODULE in parent.cmdline()
        assert LAUNCHER in process.cmdline()
        assert scratch
        assert scratch.is_dir()
        asked = engine._process  # type: ignore[attr-defined]
        asked._connection.shutdown(socket.SHUT_RDWR)  # as the kernel does for a process that has ended
        until(lambda: not any(map(lives, family)), told=lambda: family)
        assert not scratch.exists()


@pytest.mark.slow
def test_a_run_forks_its_engines_from_a_process_that_ends_with_it(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)
    of_engine = topology_at(cpu_config(), tiny_model).every_engine[0].environment
    environment = {**LOOPBACK_SETTINGS, **os.environ, **of_engine}
    arguments = server_args({"model_path": str(tiny_model)})  # it waits for its key
    before = psutil.Process().children()
    with (tmp_path / "log").open("ab") as log:
        with forking(environment):
            asked = environment | {ADDRESS: os.environ[ADDRESS], "SLIME_ENGINE_SCRATCH": str(tmp_path / "scratch")}
            [imported] = [child for child in psutil.Process().children() if child not in before]
            assert fork(arguments, asked | {"TORCH_OTHER": "1"}, log, 300) is None, "the import may have read it"
            engine = fork(arguments, asked, log, 300)
            assert engine
            process = psutil.Process(engine.pid)
            assert process.parent() == imported
        until(lambda: not lives(process), told=lambda: process)
        assert not lives(imported)
        assert ADDRESS not in os.environ
        assert fork(arguments, asked, log, 300) is None, "there is none any more"


def lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # it ends between the two
        return False


def test_what_an_import_reads_of_an_environment() -> None:
    """With more or less of that an engine is not forked."""
    own = {"SGLANG_HOST_IP": "127.0.0.1", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "9", "PYTHONPATH": "site"}
    read = {"HF_HUB_OFFLINE": "1", "SGLANG_RETURN_ORIGINAL_LOGPROB": "0"}
    assert read_by_imports({**own, **read, "TMPDIR": "scratch"}) == read
