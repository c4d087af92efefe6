"""Real Ray on this host: what is said when a part of it dies, what a signal does, and who may look into it."""

import os
import re
import signal
import socket
from pathlib import Path

import psutil
import pytest

from plugins.cluster.tests.ray.driver import Driver
from slime_cluster.ray.folders import LONGEST_PLACE, PREFIX
from slime_cluster.ray.node import HOST_GONE, last_words
from slime_testing.patience import Patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

START = "threading.Thread(target=kill, args=[{name!r}], daemon=True).start()"
"""The process is killed as soon as there is one."""
PUT = """
        kill("raylet")
        while True:  # Ray ends the driver here, as soon as it finds the object store gone
            ray.put(b"x" * 3_000_000)
            time.sleep(0.5)
"""
ODD = """
        kill("gcs_server")
        time.sleep(1)
        raise RuntimeError("something odd, because Ray is gone")
"""
AGENT = """
        [raylet] = [child for child in psutil.Process().children() if child.name() == "raylet"]
        [agent] = [child for child in raylet.children() if child.name() == "ray::{agent}"]
        agent.kill()
        time.sleep(1)
        raise RuntimeError("something odd, because Ray is gone")
"""
STAY = """
        from slime_cluster.ray.reaper import Stay
        pids = [child.pid for child in psutil.Process().children() if child.name() in ("raylet", "gcs_server")]
        reaper.stay(Stay(600.0, "door", pids, "record"))
"""
ACTOR = """
        from slime.cluster.watch import Member, died

        class Idle:
            def sleep(self, seconds):
                time.sleep(seconds)

        actor = ray.remote(num_cpus=1)(Idle).remote()
        ray.get(actor.sleep.remote(0))
        asleep = actor.sleep.remote(60)
        [raylet] = [child for child in psutil.Process().children() if child.name() == "raylet"]
        [agent] = [child for child in raylet.children() if child.name() == "ray::DashboardAgent"]
        agent.kill()
        try:
            ray.get(asleep)
        except ray.exceptions.RayError as error:
            print(str(error).replace("\\n", " "), flush=True)
            raise died(Member("trainer-0", actor), error, "sleep", Path()) from error
"""
STRANGER = """
        node = worker._global_node
        os.setgid(65534)
        os.setuid(65534)
        for path in (node.raylet_socket_name, node.plasma_store_socket_name, node.get_logs_dir_path()):
            for act in (os.stat, os.listdir, os.unlink, lambda path: os.rename(path, path + "x")):
                try:
                    act(path)
                    print("could", act, path)
                except PermissionError:
                    print("refused", flush=True)
        os._exit(0)
"""
UNUSED = """
from slime_cluster.ray import starter

def started(*args, whole=starter.started_our_way, **options):
    from ray._private import state  # it reads the environment that a start sets

    class Accessor(state.GlobalStateAccessor):
        def connect(self):
            signal.raise_signal(signal.{name})
            return super().connect()

    state.GlobalStateAccessor = Accessor
    return whole(*args, **options)

starter.started_our_way = started
"""
"""The signal comes when a connection has been made and is not used yet: without it Ray's object cannot be freed."""

BEGINNING = """
from types import SimpleNamespace
from slime_cluster.ray import reaper

def started(*args, whole=reaper.subprocess.Popen, **kwargs):
    process = whole(*args, **kwargs)
    signal.raise_signal(signal.{name})
    return process

reaper.subprocess = SimpleNamespace(PIPE=reaper.subprocess.PIPE, Popen=started)
"""
"""The signal comes when the reaper has been started and is not known yet."""


def is_told(name: str, line: str) -> bool:
    told = f"slime: Ray's {name} on {socket.gethostname()}: (pid \\d+) was killed by SIGKILL. Start the same command"
    return bool(re.match(re.escape(told).replace(re.escape("\\d+"), r"\d+"), line))


@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_a_death_while_ray_starts_is_one_line(folder: Path, name: str) -> None:
    driver = Driver(folder, beside=START.format(name=name))
    assert driver.finish() == 2
    [line] = driver.said()
    assert is_told(name, line)


def test_the_death_for_which_ray_ends_the_driver_is_one_line(folder: Path) -> None:
    driver = Driver(folder, PUT)
    assert driver.finish() == 1  # of Ray, which asks nobody
    assert driver.said()[0] == "up"
    [line] = driver.said()[1:]
    assert is_told("raylet", line)


def test_a_death_is_named_as_the_cause_of_what_follows(folder: Path) -> None:
    driver = Driver(folder, ODD)
    assert driver.finish() == 2
    assert driver.said()[0] == "up"
    [line] = driver.said()[1:]
    assert is_told("gcs_server", line)


@pytest.mark.parametrize("agent", ["DashboardAgent", "RuntimeEnvAgent"])
def test_an_agent_that_takes_its_raylet_along_is_named(folder: Path, agent: str) -> None:
    driver = Driver(folder, AGENT.format(agent=agent))
    assert driver.finish() == 2
    name = {"DashboardAgent": "dashboard_agent", "RuntimeEnvAgent": "runtime_env_agent"}[agent]
    [line] = driver.said()[1:]
    why = f"ended with exit code 0, because its {name} has ended (for memory: see dmesg). Start the same command"
    assert re.match(rf"slime: Ray's raylet on {socket.gethostname()}: \(pid \d+\) {re.escape(why)}", line), line


def test_an_actor_that_ray_gives_up_with_its_host_is_not_named_in_the_place_of_that(folder: Path) -> None:
    driver = Driver(folder, ACTOR)
    assert driver.finish() == 2
    [told, line] = driver.said()[1:]
    assert any(words in told for words in HOST_GONE), told
    assert line.startswith(f"slime: Ray's raylet on {socket.gethostname()}: (pid "), line
    assert ", because its dashboard_agent has ended" in line


@pytest.mark.parametrize("stay", ["", STAY])
def test_an_agent_is_named_also_where_ray_ends_the_driver_first(folder: Path, stay: str) -> None:
    """The driver stands still while its raylet ends, and goes without a word. Nothing stays for another."""
    driver = Driver(folder, stay + "        os.kill(os.getpid(), signal.SIGSTOP)").until_up()
    process = psutil.Process(driver.process.pid)
    assert Patience(60, lambda: [os.getpid()]).wait_for(lambda: process.status() == psutil.STATUS_STOPPED)
    [raylet] = [child for child in process.children() if child.name() == "raylet"]
    [agent] = [child for child in raylet.children() if child.name() == "ray::RuntimeEnvAgent"]
    agent.kill()
    assert Patience(60, lambda: [os.getpid()]).wait_for(lambda: raylet.status() == psutil.STATUS_ZOMBIE)
    process.kill()
    driver.finish()
    why = "Ray ended it, because its runtime_env_agent has ended (for memory: see dmesg)"
    gone = f"slime: the run's process (pid {process.pid}) ended without a word: {why}."
    assert driver.said() == ["up", f"{gone} Start the same command again to resume."]


def test_a_driver_that_is_killed_has_last_words(folder: Path) -> None:
    driver = Driver(folder).until_up()
    driver.process.kill()
    driver.finish()
    gone = f"slime: the run's process (pid {driver.process.pid}) ended without a word: it was killed, or Ray ended it."
    assert driver.said() == ["up", f"{gone} Start the same command again to resume."]


def test_sigterm_ends_as_ctrl_c_does(folder: Path) -> None:
    driver = Driver(folder).until_up()
    driver.process.terminate()
    assert driver.finish() == 130
    assert driver.said() == ["up", "slime: interrupted"]


def test_a_second_sigterm_forces_the_end(folder: Path) -> None:
    """The first one finds a block that does not end."""
    stubborn = "        try: time.sleep(600)\n        finally: print('on', flush=True) or time.sleep(600)"
    driver = Driver(folder, stubborn).until_up()
    driver.process.terminate()
    driver.until_says("on")
    driver.process.terminate()
    assert driver.finish() == -signal.SIGTERM


@pytest.mark.parametrize("reached", ["imports", "gcs_server", "raylet", "workers"])
def test_sigterm_while_ray_starts_is_one_line(folder: Path, reached: str) -> None:
    """At a place of the start, and not after so many seconds, in which a busy machine gets less far."""
    driver = Driver(folder)
    driver.until_has(reached)
    driver.process.terminate()
    code = driver.finish()
    if code == -signal.SIGTERM:
        assert driver.said() == [], "before the first line of slime"
    else:
        assert (code, driver.said()[-1:]) == (130, ["slime: interrupted"])
        assert len(driver.said()) <= 2


@pytest.mark.parametrize("reached", ["gcs_server", "raylet", "workers"])
def test_sigterm_to_the_whole_group_is_the_drivers_alone(folder: Path, reached: str) -> None:
    driver = Driver(folder)
    driver.until_has(reached)
    os.killpg(driver.process.pid, signal.SIGTERM)
    assert driver.finish() == 130
    assert driver.said()[-1:] == ["slime: interrupted"]
    assert len(driver.said()) <= 2


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("moment", [UNUSED, BEGINNING], ids=["a connection of Ray's", "the reaper"])
def test_a_signal_waits_for_what_is_being_started(folder: Path, moment: str, name: str) -> None:
    driver = Driver(folder, beside=moment.format(name=name))
    assert driver.finish() == 130
    assert driver.said() == ["slime: interrupted"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_nobody_else_gets_at_rays_sockets_and_logs(folder: Path) -> None:
    folder.chmod(0o755)  # as /tmp is
    driver = Driver(folder, STRANGER)
    driver.finish()  # what Ray leaves is removed by root
    assert [line for line in driver.said() if not line.startswith("slime: ")] == ["up", *["refused"] * 12]


def test_a_long_name_for_temporary_files_is_no_obstacle(folder: Path) -> None:
    """Linux takes no path of a socket that is longer than 107 characters."""
    long = folder / ("x" * LONGEST_PLACE)
    long.mkdir()
    driver = Driver(long, "        print(worker._global_node.raylet_socket_name, flush=True)")
    assert driver.finish() == 0
    _, socket_name = driver.said()
    assert socket_name.startswith(f"/tmp/{PREFIX}")
    assert not Path(socket_name).parents[3].exists()


def test_the_last_words_of_a_process_are_its_last_message(tmp_path: Path) -> None:
    """Lines as a raylet of Ray 2.60 writes them before it aborts."""
    lines = [
        "[2026-11-23 14:00:00,1 C 1 1] (raylet) node_manager.cc:1: Check failed: it lost its GCS.",
        "*** StackTrace Information ***",
        "/ray/core/src/ray/raylet/raylet(+0xb7) [0x55d5c7a12b7a] ray::RayLog::~RayLog()",
        "    @     0x7f10a0b1c520  (unknown)",
        "",
    ]
    (tmp_path / "raylet.err").write_text("\n".join(lines))
    said = "; its log ends: [2026-11-23 14:00:00,1 C 1 1] (raylet) node_manager.cc:1: Check failed: it lost its GCS"
    assert last_words(tmp_path, "raylet") == said
    assert last_words(tmp_path, "gcs_server") == ""
