"""How an engine starts, what it says when it cannot, and that nothing of it outlives its parent."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from slime.errors import SlimeError
from slime.net import LOOPBACK
from slime.rollout import engine as engine_module
from slime.rollout.engine import EngineProcess, reserved_port, server_args
from slime.rollout.launcher import parse
from slime.testing.engines import cpu_config, running_engine


def test_arguments_survive_the_command_line():
    fields = {"stop": None, "names": ["a b", "c=d"], "nested": {"x": [1.5]}, "port": 30000}
    assert parse(server_args(fields)) == fields


@pytest.mark.slow
def test_engine_that_dies_at_start_shows_the_end_of_its_log(tiny_model, tmp_path):
    engine = EngineProcess(
        cpu_config(max_total_tokens=-1), model_path=tiny_model, host=LOOPBACK, log=tmp_path / "engine.log"
    )
    with pytest.raises(SlimeError, match="before it answered; its log ends: ") as raised:
        engine.start()
    assert str(engine.log) in str(raised.value)
    assert "Error" in raised.value.what
    assert group(engine.pid) == []


@pytest.mark.slow
def test_engine_that_takes_too_long_is_stopped(tiny_model, tmp_path):
    cfg = cpu_config()
    cfg.cluster.start_timeout_s = 0.5
    engine = EngineProcess(cfg, model_path=tiny_model, host=LOOPBACK, log=tmp_path / "engine.log")
    with pytest.raises(SlimeError, match=r"not up after 0\.5 s.*start_timeout_s"):
        engine.start()
    assert group(engine.pid) == []


@pytest.mark.slow
def test_port_taken_meanwhile_is_replaced(tiny_model, tmp_path, monkeypatch):
    """Somebody binds the port between our look and SGLang's start."""
    with socket.socket() as somebody:
        somebody.bind((LOOPBACK, 0))
        somebody.listen()
        taken = somebody.getsockname()[1]
        ports = iter([contextlib.nullcontext(taken)])
        monkeypatch.setattr(engine_module, "reserved_port", lambda host: next(ports, None) or reserved_port(host))
        with running_engine(tiny_model, tmp_path / "engine.log") as engine:
            assert not engine.endpoint.url.endswith(f":{taken}")


PARENT = """
import sys, time
from pathlib import Path
from slime.testing.engines import running_engine
with running_engine(Path(sys.argv[1]), Path(sys.argv[2])) as engine:
    print(engine.pid, flush=True)
    time.sleep(100)
"""


@pytest.mark.slow
def test_nothing_outlives_a_killed_parent(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-c", PARENT, str(tiny_model), str(tmp_path / "engine.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        engine = int(parent.stdout.readline())
        assert len(group(engine)) >= 3, "launcher, scheduler, detokenizer"
        assert list(tmp_path.glob("slime-engine-*"))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    deadline = time.monotonic() + 10
    while group(engine) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert group(engine) == []
    assert not list(tmp_path.glob("slime-engine-*"))


@pytest.mark.slow
def test_stop_leaves_no_process_and_no_file(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with running_engine(tiny_model, tmp_path / "engine.log") as engine:
        assert list(tmp_path.glob("slime-engine-*"))
    assert group(engine.pid) == []
    assert [path.name for path in tmp_path.iterdir()] == ["engine.log"]
    engine.stop()  # a second time is nothing


def group(leader):
    """Names of the living processes of a process group."""
    return [name for process in psutil.process_iter() if (name := name_in_group(process, leader))]


def name_in_group(process, leader):
    try:
        alive = os.getpgid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE
        return process.name() if alive else ""
    except (ProcessLookupError, psutil.NoSuchProcess):
        return ""
