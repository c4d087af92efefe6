"""Schedulers and detokenizers that were started beside their server, as where CUDA is."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BufferedWriter
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from slime.net import LOOPBACK
from slime_sglang.engine import early
from slime_sglang.engine.driver.process import EngineProcess
from slime_testing.engines import cpu_config, topology_at

AS_ON_GPUS = """
from slime_sglang.engine import early, launcher
launcher.on_cpu = lambda: None  # SGLang spawns
start = early.start
early.start = lambda fields: start({**fields, "device": "cuda"})
launcher.launch()
"""
SET_BY_SGLANG = "SGLANG_RUN_ID"
"""After the server has imported everything: a process that was started before is not born with it."""


READ = "SLIME_TEST_READ"
"""A variable that this module reads as it is imported, as modules of SGLang's read theirs."""
READ_AT_IMPORT = os.environ.get(READ)


def tell(to: Connection) -> None:
    """What a process finds, through a pipe that it inherits."""
    to.send((os.getpid(), os.environ.get(READ), os.environ.get("SLIME_TEST_LATER"), READ_AT_IMPORT))


@pytest.mark.parametrize("changes", [False, True], ids=["same", "changed"])
def test_a_process_finds_what_a_spawned_one_would(monkeypatch: pytest.MonkeyPatch, changes: bool) -> None:
    spawned = multiprocessing.get_context("spawn")
    monkeypatch.setattr(sys, "argv", ["server"])
    monkeypatch.setattr(early, "_waiting", [early.Early(__name__)])
    pid = early._waiting[0].pid
    monkeypatch.setattr(multiprocessing.context.SpawnProcess, "_Popen", staticmethod(early.popen))
    monkeypatch.setenv("SLIME_TEST_LATER", "later")
    if changes:
        monkeypatch.setenv(READ, "new")
    reader, writer = spawned.Pipe(duplex=False)
    process = spawned.Process(target=tell, args=(writer,))
    process.start()
    assert reader.poll(60)
    found, *values = reader.recv()
    process.join(60)
    assert process.exitcode == 0
    assert values == (["new", "later", "new"] if changes else [None, "later", None])
    assert (found == pid) == (not changes), "one that read another value is started again"
    assert found == process.pid


def test_one_that_has_ended_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["server"])
    ended = early.Early(__name__)
    os.kill(ended.pid, signal.SIGKILL)
    assert not ended.take()


class Spawning(EngineProcess):
    def launch(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: BufferedWriter
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", AS_ON_GPUS, *arguments],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


@contextmanager
def running(model: Path, log: Path) -> Iterator[EngineProcess]:
    cfg = cpu_config()
    patient = replace(cfg, cluster=replace(cfg.cluster, start_timeout_s=400.0))  # three processes import SGLang at once
    engine = Spawning(topology_at(patient, model), host=LOOPBACK, log=log)
    try:
        engine.start()
        yield engine
    finally:
        engine.stop()


def workers(engine: EngineProcess) -> dict[str, bool]:
    """Name of each worker of SGLang's -> whether it was started early."""
    found = psutil.Process(engine.pid).children(recursive=True)
    names = {process: " ".join(process.cmdline()) for process in found}
    return {
        name.split("::")[1].split()[0]: SET_BY_SGLANG not in Path(f"/proc/{process.pid}/environ").read_text()
        for process, name in names.items()
        if "sglang::" in name
    }


@pytest.mark.slow
def test_a_server_takes_the_processes_that_were_started_with_it(tiny_model: Path, tmp_path: Path) -> None:
    with running(tiny_model, tmp_path / "engine.log") as engine:
        assert workers(engine) == {"scheduler": True, "detokenizer": True}
        assert "is started again" not in engine.log.read_text()
