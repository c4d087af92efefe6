"""Real Ray, real actors, and what is said when one of either dies or hangs."""

from __future__ import annotations

import itertools
import json
import os
import socket
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from slime.run_dir import RunDir

pytestmark = pytest.mark.slow

WITHIN_S = 25
"""Three on an idle machine; what is done then would last 30 and more."""
DRIVER = """
import asyncio, json, os, signal, sys, threading, time
from pathlib import Path

import psutil

from slime.cluster.actors import Actor, RunInfo, remote
from slime.cluster.calls import Calls
from slime.cluster.placement import reserve
from slime.cluster.watch import Member
from slime.config.schema import ClusterConfig, SlimeConfig
from slime.errors import Consequence, NoAnswer, SlimeError
from slime.net import new_key
from slime_observers.console.startup import Startup
from slime.run_dir import RunDir, with_resume_hint
from slime.topology.topology import read_topology
from slime_cluster.ray.joining import Hosts
from slime_cluster.ray.reaper import reaped
from slime_cluster.ray.starter import ray_cluster

class Idle(Actor):
    def sleep(self, seconds):
        time.sleep(seconds)
    def end(self):
        pass
    def fail(self):
        raise SlimeError("ended before it answered", where="engine-0", todo="Read its log.")
    def fail_late(self):
        time.sleep(1)
        raise SlimeError("memory ran out", where="trainer-0", todo="Take less.")
    def follow(self):
        raise Consequence("trainer-0 failed", where="trainer-1", todo="See there.")

run = RunDir.open(Path(sys.argv[1]))
cfg = SlimeConfig(cluster=ClusterConfig(name="local"))

class Impatient(Startup):
    def __call__(self, event):
        super().__call__(event)
        os.kill(os.getpid(), signal.SIGINT)

def outcome(title, act):
    started = time.monotonic()
    try:
        with with_resume_hint(run, 0):
            act()
    except (SlimeError, KeyboardInterrupt) as error:
        words = str(error) or error.__notes__[0]
        said = [title, words, str(error.__cause__), time.monotonic() - started]
        print(json.dumps(said), flush=True)

def kill_later(name, number):
    threading.Timer(0.5, os.kill, (pids[name], number)).start()

def fails(error):
    with calls.naming_causes():
        raise error

def forget(member):
    calls.trainers.remove(member)
    check_in()

def check_in():  # with nobody watched who is known to be dead
    calls._watch = None
    calls.check_in(60)

def all_sleep(seconds, limit_s=30):
    calls.all(calls.trainers, "sleep", limit_s, Idle.sleep, seconds)

def sleep(member):
    calls.wait({member.call(Idle.sleep, 60): member}, "sleep", limit_s=30)

def generate():
    asyncio.run(calls.watched(asyncio.sleep(60), "generating"))

def idle():
    return sum("ray::IDLE" in child.cmdline() for child in psutil.Process().children(recursive=True))

mark = f"test{os.getpid()}"  # a reaper ends all that bear it
with reaped(mark), ray_cluster(cfg.cluster, num_slots=5) as started:
    import ray

    idle_at_first = idle()

    told = RunInfo(read_topology(cfg), run.logs, new_key(), mark, True)
    members = [Member(f"trainer-{n}", remote(Idle, num_cpus=1).remote(told, f"trainer-{n}")) for n in range(4)]
    engine = Member("engine-0", remote(Idle, num_cpus=1).remote(told, "engine-0"))
    calls = Calls(list(members), [engine], run.logs, Hosts([], started, is_own=True))
    calls.check_in(60)
    pids = {member.name: member.pid for member in [*members, engine]}
    print(json.dumps(pids), flush=True)
    ray_own = {child.name(): child for child in psutil.Process().children() if "/ray/" in " ".join(child.cmdline())}
    print(json.dumps(["processes of Ray", " ".join(sorted(ray_own)), f"{idle_at_first}, {idle()} idle", 0]), flush=True)

    all_sleep(1.5)  # longer than a look: nobody has died
    os.kill(pids["trainer-3"], signal.SIGSTOP)
    outcome("hang", lambda: all_sleep(0, 4))
    outcome("engine hangs", lambda: fails(NoAnswer("no answer", where="engine", todo="Wait.")))
    os.kill(pids["trainer-3"], signal.SIGCONT)
    calls.watch_beside({engine.call(Idle.fail): engine}, "starting engines")
    outcome("beside", lambda: all_sleep(5))  # of which it awaits as much as a look takes
    both = ((Idle.follow, members[1]), (Idle.fail_late, members[0]))
    outcome("cause", lambda: calls.wait({member.call(act): member for act, member in both}, "publishing", 30))
    outcome("no cause", lambda: calls.wait({members[1].call(Idle.follow): members[1]}, "publishing", 30))
    outcome("nobody", lambda: fails(SlimeError("odd", where="data", todo="Look.")))

    cfg.cluster.num_trainers, cfg.cluster.devices_per_node, cfg.cluster.start_timeout_s = 9, 9, 600
    cfg.algo.name = "sft"
    outcome("too many", lambda: reserve(read_topology(cfg), Startup()))
    cfg.cluster.num_trainers = 2
    outcome("interrupted", lambda: reserve(read_topology(cfg), Impatient()))
    cfg.cluster.start_timeout_s = 1
    outcome("taken", lambda: reserve(read_topology(cfg), Startup()))

    kill_later("trainer-3", signal.SIGKILL)
    outcome("killed while engines generate", generate)
    forget(members[3])
    kill_later("trainer-2", signal.SIGKILL)
    outcome("killed at work", lambda: sleep(members[2]))
    forget(members[2])
    kill_later("trainer-1", signal.SIGSEGV)
    outcome("crashed", lambda: sleep(members[1]))
    forget(members[1])
    os.kill(pids["engine-0"], signal.SIGKILL)
    outcome("keeper", lambda: fails(SlimeError("no answer to /generate", where="engine", todo="See.")))
    calls.engines.clear()
    check_in()

    attended = dict(calls._watch._ray._nodes)
    ray_own["raylet"].kill()
    outcome("raylet", generate)
    calls._watch._ray._nodes |= attended  # as if it had followed the GCS before anybody looked
    ray_own["gcs_server"].kill()
    time.sleep(1)
    outcome("gcs", generate)
    print(json.dumps(None), flush=True)
    time.sleep(600)
"""


@dataclass
class Told:
    """What the driver said.

    Attributes:
        folder: of the run.
        pids: by name.
        errors: by what was done: the message, the message of its cause, and the seconds it took.
        startup: lines of what was waited for.
    """

    folder: Path
    pids: dict[str, int]
    errors: dict[str, tuple[str, str, float]]
    startup: list[str]

    def label(self, name: str) -> str:
        return f"{name} (pid {self.pids[name]} on {socket.gethostname()})"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("run")
    command = [sys.executable, "-c", DRIVER, str(folder)]
    (folder / "home").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    environment["HOME"] = str(folder / "home")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as driver:
        assert driver.stdout
        lines = list(itertools.takewhile(lambda line: line != "null\n", driver.stdout))
        said = [json.loads(line) for line in lines if line[:1] in ("[", "{")]
        driver.kill()
    pids, *errors = said
    outcomes = {title: (message, cause, seconds) for title, message, cause, seconds in errors}
    return Told(folder, pids, outcomes, [line for line in lines if " s  " in line])


def test_no_process_of_ray_is_started_for_nothing(told: Told) -> None:
    """Beside these, `ray.init` starts a dashboard, an autoscaler and a log monitor, and waits for the first; the raylet
    starts a worker a CPU, beside those of the actors."""
    assert told.errors["processes of Ray"][:2] == ("gcs_server raylet", "0, 0 idle")


def test_who_gives_no_answer_is_named_with_its_state(told: Told) -> None:
    message, _, _ = told.errors["hang"]
    late = f"trainer-3: no answer within 4 s while sleep: {told.label('trainer-3')} is stopped (T)"
    assert message.startswith(late)
    assert str(told.folder / "logs/hang.txt") in message


def test_the_stacks_of_all_lie_in_one_file(told: Told) -> None:
    text = (told.folder / "logs/hang.txt").read_text()
    assert f"{told.label('trainer-3')}: no stack; stopped (T)" in text
    for name in ("trainer-0", "trainer-1", "trainer-2", "engine-0"):
        (stack, _) = (part for part in text.split("\n\n") if part.startswith(f"{told.label(name)}: "))
        assert "default_worker.py" in text.partition(stack)[2] + stack


def test_an_engine_that_gives_no_answer_has_the_stacks_taken(told: Told) -> None:
    message, cause, _ = told.errors["engine hangs"]
    assert message.startswith(f"engine: no answer; {told.label('trainer-3')} is stopped (T)")
    assert cause == "engine: no answer. Wait."


def test_who_fails_beside_a_call_of_others_ends_that(told: Told) -> None:
    assert told.errors["beside"][0] == "engine-0: ended before it answered. Read its log."


def test_the_cause_is_shown_and_not_what_follows_from_it(told: Told) -> None:
    """Two sources of a publish, of which the second only knows that the first has failed."""
    assert told.errors["cause"][0] == "trainer-0: memory ran out. Take less."
    assert told.errors["no cause"][0] == "trainer-1: trainer-0 failed. See there."


def test_an_error_that_nobody_caused_stays_as_it_is(told: Told) -> None:
    assert told.errors["nobody"][0] == "data: odd. Look."


def test_a_run_that_is_too_large_is_told_beside_what_ray_has(told: Told) -> None:
    """At once: nothing was waited for, and it would have been ten minutes."""
    what = (
        "the run needs 1 host with 9 CPUs and 0 GPUs, and Ray has 1 host with 5 CPUs and 0 GPUs in all. Lower cluster"
    )
    assert told.errors["too many"][0].startswith(f"placement: {what}")
    assert not [line for line in told.startup if "9 CPUs" in line]


def test_a_wait_for_devices_is_told_and_ends_at_ctrl_c(told: Told) -> None:
    interrupted, taken = told.startup
    free = "free are 0 CPUs and 0 GPUs of 5 CPUs and 0 GPUs"
    assert interrupted.endswith(
        f" s  waiting for 1 host with 2 CPUs and 0 GPUs, free at once; {free}; gives up after 600 s\n"
    )
    assert told.errors["interrupted"][0] == "nothing was saved yet"
    assert taken.endswith("gives up after 1 s\n")
    what = "the run needs 1 host with 2 CPUs and 0 GPUs, free at once, and Ray has 1 host with 5 CPUs and 0 GPUs in all"
    assert told.errors["taken"][0].startswith(f"placement: {what} (waited 1 s). Free devices")


@pytest.mark.parametrize(
    ("done", "name", "what"),
    [
        ("killed while engines generate", "trainer-3", "was killed by SIGKILL, it seems, as it left no word"),
        ("killed at work", "trainer-2", "was killed by SIGKILL, it seems, as it left no word"),
        ("crashed", "trainer-1", "was killed by SIGSEGV in sleep (<string>:"),
        ("keeper", "engine-0", "was killed by SIGKILL, it seems, as it left no word"),
    ],
)
def test_who_died_is_named_within_seconds(told: Told, done: str, name: str, what: str) -> None:
    message, _, seconds = told.errors[done]
    assert message.startswith(f"{told.label(name)}: {what}")
    assert f"{name}.log" in message
    assert seconds < WITHIN_S


@pytest.mark.parametrize(("done", "name"), [("gcs", "gcs_server at "), ("raylet", "raylet on ")])
def test_a_death_among_rays_own_is_named_within_seconds(told: Told, done: str, name: str) -> None:
    message, _, seconds = told.errors[done]
    assert message.startswith(f"Ray's {name}")
    assert "was killed by SIGKILL while" in message
    assert seconds < WITHIN_S


def test_rays_token_is_for_nobody_else(told: Told) -> None:
    assert stat.S_IMODE((told.folder / "home/.ray/auth_token").stat().st_mode) == 0o600
    assert list((told.folder / "home/.ray").iterdir()) == [told.folder / "home/.ray/auth_token"]


def test_a_killed_driver_leaves_nothing_held(told: Told) -> None:
    RunDir.open(told.folder).close()  # Ray's processes inherited no lock, even while they end
