"""How an engine starts, what it says when it cannot, and that nothing of it outlives its parent."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from slime.config.schema import Device, Placement
from slime.errors import SlimeError
from slime.rollout import engine as engine_module
from slime.rollout.engine import EngineProcess, engine_environment, reserved_port, server_args, server_fields
from slime.rollout.launcher import parse
from slime.testing.engines import LOCALHOST, cpu_config, running_engine

WHERE = {"model_path": Path("/models/tiny"), "host": LOCALHOST, "port": 30000}


def test_arguments_are_what_slime_sets_and_then_the_users():
    cfg = cpu_config(schedule_policy="lpm", sleep_on_idle=False)
    fields = server_fields(cfg, **WHERE)
    assert fields["load_format"] == "dummy"
    assert fields["device"] == "cpu"
    assert fields["schedule_policy"] == "lpm"
    assert fields["sleep_on_idle"] is False, "rollout.sglang has the last word"


def test_arguments_survive_the_command_line():
    fields = server_fields(cpu_config(stop=None, names=["a b", "c=d"], nested={"x": [1.5]}), **WHERE)
    assert parse(server_args(cpu_config(stop=None, names=["a b", "c=d"], nested={"x": [1.5]}), **WHERE)) == fields


def test_every_field_is_one_of_server_args():
    """Checked against the installed SGLang's source: importing it takes seconds."""
    from slime.config.passthrough import fields_of

    assert set(server_fields(cpu_config(), **WHERE)) <= set(fields_of("rollout.sglang"))


@pytest.mark.parametrize("section", ["rollout", "eval"])
def test_only_stop_strings_need_a_tokenizer_inside(section):
    cfg = cpu_config()
    assert server_fields(cfg, **WHERE)["skip_tokenizer_init"] is True
    getattr(cfg, section).sampling.stop = ["\n"]
    assert server_fields(cfg, **WHERE)["skip_tokenizer_init"] is False


def test_layer_cut_joins_the_users_overrides():
    cfg = cpu_config(json_model_override_args='{"rope_theta": 1e6}')
    cfg.model.num_layers = 2
    overrides = json.loads(server_fields(cfg, **WHERE)["json_model_override_args"])
    assert overrides == {"rope_theta": 1e6, "num_hidden_layers": 2}


@pytest.mark.parametrize("placement", Placement)
def test_only_colocated_engines_give_memory_back(placement):
    cfg = cpu_config()
    cfg.cluster.device, cfg.cluster.placement = Device.cuda, placement
    assert server_fields(cfg, **WHERE)["enable_memory_saver"] is (placement is Placement.colocated)


@pytest.mark.parametrize(("num_engines", "most"), [(1, 40), (2, 40 + engine_module.MAX_IMBALANCE)])
def test_cuda_graphs_cover_every_request_an_engine_may_have(num_engines, most):
    cfg = cpu_config()
    cfg.cluster.device, cfg.cluster.num_engines, cfg.rollout.max_requests_per_engine = Device.cuda, num_engines, 40
    assert server_fields(cfg, **WHERE)["cuda_graph_max_bs_decode"] == most
    cfg.rollout.sglang["cuda_graph_max_bs_decode"] = 8
    assert server_fields(cfg, **WHERE)["cuda_graph_max_bs_decode"] == 8, "the user's own setting wins"


def test_environment_of_cpu_ranks(monkeypatch):
    for name in ("OMP_NUM_THREADS", "SGLANG_CPU_OMP_THREADS_BIND"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    environment = engine_environment(cpu_config(tp_size=3), "/scratch")
    assert environment["SGLANG_CPU_OMP_THREADS_BIND"] == "0|1|0"
    assert "SGLANG_CPU_OMP_THREADS_BIND" not in engine_environment(cpu_config(), "/scratch")
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert engine_environment(cpu_config(), "/scratch")["OMP_NUM_THREADS"] == "4", "the user's own setting wins"


@pytest.mark.slow
def test_engine_that_dies_at_start_shows_the_end_of_its_log(tiny_model, tmp_path):
    engine = EngineProcess(
        cpu_config(max_total_tokens=-1), model_path=tiny_model, host=LOCALHOST, log=tmp_path / "engine.log"
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
    engine = EngineProcess(cfg, model_path=tiny_model, host=LOCALHOST, log=tmp_path / "engine.log")
    with pytest.raises(SlimeError, match=r"not up after 0\.5 s.*start_timeout_s"):
        engine.start()
    assert group(engine.pid) == []


@pytest.mark.slow
def test_port_taken_meanwhile_is_replaced(tiny_model, tmp_path, monkeypatch):
    """Somebody binds the port between our look and SGLang's start."""
    with socket.socket() as somebody:
        somebody.bind((LOCALHOST, 0))
        somebody.listen()
        taken = somebody.getsockname()[1]
        ports = iter([contextlib.nullcontext(taken)])
        monkeypatch.setattr(engine_module, "reserved_port", lambda host: next(ports, None) or reserved_port(host))
        with running_engine(tiny_model, tmp_path / "engine.log") as engine:
            assert not engine.url.endswith(f":{taken}")


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
