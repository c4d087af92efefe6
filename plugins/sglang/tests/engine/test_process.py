"""How an engine starts, what it says when it cannot, and that nothing of it outlives its parent."""

import contextlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from requests.utils import should_bypass_proxies

from slime.engines.scratch import ChildEnd
from slime.errors import Death, SlimeError
from slime.net import LOOPBACK
from slime_sglang.engine.driver import process as process_module
from slime_sglang.engine.driver.process import EngineProcess, reserved_port, server_args
from slime_sglang.engine.launcher import parse
from slime_testing.engines import cpu_config, running_engine, server, topology_at
from stack_dumps.dumps import look
from tests.waiting import until


def test_arguments_survive_the_command_line():
    fields = {"stop": None, "names": ["a b", "c=d"], "nested": {"x": [1.5]}, "port": 30000}
    assert parse(server_args(fields)) == fields


@pytest.mark.slow
def test_engine_that_dies_at_start_shows_the_end_of_its_log(tiny_model, tmp_path):
    topology = topology_at(cpu_config(max_total_tokens=-1), tiny_model)
    engine = EngineProcess(topology, host=LOOPBACK, log=tmp_path / "engine.log")
    with pytest.raises(SlimeError, match="before it answered; its log ends: ") as raised:
        engine.start()
    assert str(engine.log) in str(raised.value)
    assert raised.value.what.endswith("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
    assert not isinstance(raised.value, Death), "it would come again"
    assert group(engine.pid) == []


@pytest.mark.slow
def test_a_server_that_fails_when_its_schedulers_run_does_not_wait_for_them(tiny_model, tmp_path):
    topology = topology_at(cpu_config(skip_tokenizer_init=False, chat_template="nowhere"), tiny_model)
    engine = EngineProcess(topology, host=LOOPBACK, log=tmp_path / "engine.log")
    with pytest.raises(SlimeError, match=r"ended before it answered; its log ends: .*nowhere"):
        engine.start()
    assert group(engine.pid) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1, 2], ids=["server", "scheduler", "detokenizer"])
def test_a_process_killed_as_its_engine_starts_is_a_death_and_the_next_start_goes_well(number, tiny_model, tmp_path):
    engine = server(topology_at(cpu_config(), tiny_model), host=LOOPBACK, log=tmp_path / "engine.log")
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(engine.start)
        until(lambda: hasattr(engine, "_process") and len(in_order(engine.pid)) > number)
        victim = in_order(engine.pid)[number]
        victim.kill()
        error = starting.exception()
    assert type(error) is Death
    of_child = f"ended with exit code 1: process {victim.pid} " if number else ""
    assert error.what == f"{of_child}was killed by SIGKILL, as it started"
    assert re.fullmatch(rf"engine-0 \(pid {engine.pid}, http://\S+\)", error.where)
    assert group(engine.pid) == []
    try:
        assert engine.start() == engine.endpoint
    finally:
        engine.stop()


def in_order(leader):
    """The living processes of a group, as they were started."""
    found = [process for process in psutil.process_iter() if name_in_group(process, leader)]
    return sorted(found, key=psutil.Process.create_time)


@pytest.mark.slow
def test_engine_that_takes_too_long_is_stopped(tiny_model, tmp_path):
    cfg = cpu_config()
    cfg.cluster.start_timeout_s = 0.5
    engine = EngineProcess(topology_at(cfg, tiny_model), host=LOOPBACK, log=tmp_path / "engine.log")
    with pytest.raises(SlimeError, match=r"not up after 0\.5 s.*start_timeout_s"):
        engine.start()
    assert group(engine.pid) == []


UNWILLING = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Server(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        self.send_error(500)

fields = dict(field.split("=", 1) for field in sys.argv[3:])
HTTPServer((json.loads(fields["host"]), int(fields["port"])), Server).serve_forever()
"""


def test_engine_that_fails_at_its_first_request_is_stopped(tmp_path, monkeypatch):
    server = tmp_path / "server.py"
    server.write_text(UNWILLING.format(python=sys.executable))
    server.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(server))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nobody is; engines are reached without
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cfg = cpu_config()
    cfg.cluster.start_timeout_s = 100.0
    engine = EngineProcess(topology_at(cfg, tmp_path), host=LOOPBACK, log=tmp_path / "engine.log")
    with pytest.raises(SlimeError, match=r"no answer to /freeze_gc: .*500"):
        engine.start()
    assert group(engine.pid) == []
    assert not list(tmp_path.glob("slime-engine-*"))


def test_engines_ask_each_other_without_a_proxy(tmp_path, monkeypatch):
    """SGLang's prefill and decode engines do so by requests."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "example.org")
    url = "http://10.0.0.1:8998/route"
    assert not should_bypass_proxies(url, no_proxy=None)
    engine = EngineProcess(topology_at(cpu_config(), tmp_path), host=LOOPBACK, log=tmp_path / "engine.log")
    for name, value in engine.environment(str(tmp_path)).items():
        monkeypatch.setenv(name, value)
    assert should_bypass_proxies(url, no_proxy=None)


def test_other_ports_that_sglang_finds_taken_are_known_too():
    """By its words, which a new version may change."""
    (folder,) = importlib.util.find_spec("sglang").submodule_search_locations
    assert 'f"{port_name} at {port} is not available in {timeout_s}' in Path(folder, "srt/utils/network.py").read_text()
    assert process_module.PORT_TAKEN.search("ValueError: dist_init_port at 41233 is not available in 30 seconds.")
    assert process_module.PORT_TAKEN.search("[Errno 98] error while attempting to bind: address already in use")


PARENT = """
import sys, time
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit
from slime_testing.engines import running_engine
with running_engine(Path(sys.argv[1]), Path(sys.argv[2]), forked=False) as engine:
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
        (scratch,) = tmp_path.glob("slime-engine-*")
        assert named_like(scratch, shared_memory(engine))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    until(lambda: group(engine) == [], told=lambda: group(engine))
    assert not scratch.exists()
    assert not list(Path("/dev/shm").glob(f"{scratch.name}*"))


@pytest.mark.slow
def test_port_taken_meanwhile_is_replaced_and_stop_leaves_no_process_and_nothing_but_logs(
    tiny_model, tmp_path, monkeypatch
):
    """Somebody binds the port between our look and SGLang's start: what that start left is gone like the rest."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with socket.socket() as somebody:
        somebody.bind((LOOPBACK, 0))
        somebody.listen()
        taken = somebody.getsockname()[1]
        ports = iter([contextlib.nullcontext(taken)])
        monkeypatch.setattr(process_module, "reserved_port", lambda host: next(ports, None) or reserved_port(host))
        with running_engine(tiny_model, tmp_path / "engine.log", forked=False) as engine:
            assert not engine.endpoint.url.endswith(f":{taken}")
            (scratch,) = tmp_path.glob("slime-engine-*")
            assert named_like(scratch, shared_memory(engine.pid))
    assert group(engine.pid) == []
    logs = {"engine.log", "engine-server.stack", "engine-scheduler-tp0.stack"}
    assert logs <= {path.name for path in tmp_path.iterdir()} <= {*logs, "engine-detokenizer.stack"}
    assert not list(Path("/dev/shm").glob(f"{scratch.name}*"))
    engine.stop()  # a second time is nothing


@pytest.mark.slow
@pytest.mark.parametrize(("number", "killed"), [(signal.SIGQUIT, False), (signal.SIGKILL, True)])
def test_who_kills_itself_was_not_killed(tiny_model, tmp_path, number, killed):
    """SGLang's processes send SIGQUIT to the first of them when they fail, which then kills all with SIGKILL."""
    with running_engine(tiny_model, tmp_path / "engine.log") as engine:
        os.kill(engine.pid, number)
        until(lambda: engine.end(waits=True), told=lambda: group(engine.pid))
        end = engine.end()
    assert (end.killed, "was killed by SIGKILL" in end.error.what) == (killed, True)


def shared_memory(leader):
    """Files of /dev/shm that processes of the group have open, mapped or not."""
    found = set()
    for process in psutil.process_iter():
        if name_in_group(process, leader):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
                found |= {Path(entry.path) for entry in process.memory_maps() if entry.path.startswith("/dev/shm/")}
    return found


def named_like(scratch, segments):
    """There are some, and all bear the scratch folder's name."""
    return segments and all(segment.name.startswith(f"{scratch.name}-") for segment in segments)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "status"),
    [("/health", 200), ("/health_generate", 401), ("/metrics", 404), ("/metrics/x", 401), ("/health/../generate", 401)],
)
def test_a_stranger_learns_that_it_lives_and_no_more(engine, path, status):
    with contextlib.closing(HTTPConnection(urlsplit(engine.endpoint.url).netloc, timeout=30)) as connection:
        connection.request("GET", path)
        assert connection.getresponse().status == status


@pytest.mark.slow
def test_its_processes_say_where_they_stand(engine):
    seen = {each.name: each for each in look([], engine.log.parent)}
    assert "in run_event_loop" in seen["engine-scheduler-tp0"].stack
    assert "in launch_server" in seen["engine-server"].stack
    scheduler = seen["engine-scheduler-tp0"].pid
    os.kill(scheduler, signal.SIGSTOP)
    try:
        (stopped,) = (each for each in look([], engine.log.parent, answer_s=1.0) if each.pid == scheduler)
    finally:
        os.kill(scheduler, signal.SIGCONT)
    assert (stopped.standing(), stopped.stack) == ("stopped (T)", "")


@pytest.mark.slow
def test_no_collection_looks_through_what_a_server_loaded_at_its_start(engine):
    """Of 650,000 objects it took about a second, in the middle of a step."""
    frozen = re.findall(r"Freezing GC in (\w+)", engine.log.read_text())
    assert {"Tokenizer", "Scheduler"} <= set(frozen)


def test_the_end_of_a_log_leaves_statistics_out():
    statistics = "[2026-11-22 10:33:18] Decode batch, #running-req: 16, #token: 777, token usage: 0.04"
    crash = ["Traceback (most recent call last):", '  File "scheduler.py", line 1', "ValueError: too many"]
    assert process_module._tail("\n".join([*crash, *[statistics] * 20])) == " | ".join(map(str.strip, crash))
    assert process_module._tail(statistics) == "(with nothing that tells why)"
    assert len(process_module._tail("x" * 5000)) < 500
    warning = "/lib/routing.py:381: FastAPIDeprecationWarning: it is deprecated\n  return await call()\n"
    assert process_module._tail(f"{warning}what counts\n{warning}") == "what counts"


@pytest.mark.slow
def test_a_server_that_failed_tells_why_whatever_its_processes_write_after_it(tiny_model):
    """The launcher itself, with a field that SGLang has not."""
    command = [
        sys.executable,
        "-m",
        process_module.LAUNCHER,
        *server_args({"model_path": str(tiny_model), "nowhere": 1}),
    ]
    environment = {**os.environ, "SLIME_ENGINE_PARENT": str(os.getpid()), "SLIME_ENGINE_SCRATCH": "/nowhere"}
    done = subprocess.run(command, input=b"key\n", stderr=subprocess.PIPE, env=environment, start_new_session=True)
    written = done.stderr.decode()
    assert done.returncode == 1
    error = "TypeError: ServerArgs.__init__() got an unexpected keyword argument 'nowhere'"
    loading = "".join(f"[2026-11-22 10:33:18] Load weight begin, {number}\n" for number in range(9))
    assert process_module._tail(f"{loading}{written}{loading}").endswith(f" | {error}")
    ended = f"{ChildEnd(1.0, 7, 'was killed by SIGKILL')}\n"
    assert process_module._tail(f"{written}{ended}RuntimeError: of the scheduler").endswith("of the scheduler")


def group(leader):
    """Names of the living processes of a process group."""
    return [name for process in psutil.process_iter() if (name := name_in_group(process, leader))]


def name_in_group(process, leader):
    try:
        alive = os.getpgid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE
        return process.name() if alive else ""
    except (ProcessLookupError, psutil.NoSuchProcess):
        return ""
