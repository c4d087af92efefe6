"""Real Ray on this host: how long its start may take."""

import re
from pathlib import Path

import pytest

from plugins.cluster.tests.ray.driver import Driver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

UNKNOWN = """
from slime_cluster.ray import starter

def started(*args, whole=starter.started_our_way, **options):
    from ray._private import services  # it reads the environment that a start sets
    popen = services.ConsolePopen

    def stopped(command, *args, **kwargs):
        process = popen(command, *args, **kwargs)
        if os.path.basename(command[0]) == "raylet":
            process.send_signal(signal.SIGSTOP)
        return process

    services.ConsolePopen = stopped
    return whole(*args, **options)

starter.started_our_way = started
"""
UNCONNECTED = """
from slime_cluster.ray import starter

def kept(own, limit_s, whole=starter.signals_kept):
    from ray._private import worker
    connect = worker.connect

    def stopped(*args, **kwargs):
        kill("raylet", signal.SIGSTOP)
        connect(*args, **kwargs)

    worker.connect = stopped
    return whole(own, 5)

starter.signals_kept = kept
"""


@pytest.mark.parametrize(
    ("moment", "limit_s", "says", "code"),
    [
        (UNKNOWN, 5, "it is not up after 5 s|the start hangs", (1, 2)),  # on a busy machine it was seen to hang in Ray
        (UNCONNECTED, 120, "it is up but does not answer this process", (1,)),
    ],
    ids=["unknown", "unconnected"],
)
def test_a_start_that_takes_longer_than_it_may_is_one_line(
    folder: Path, moment: str, limit_s: float, says: str, code: tuple[int, ...]
) -> None:
    """The raylet is stopped before it is known, or before this process has a connection to it: nobody is dead."""
    driver = Driver(folder, beside=moment, timeout_s=limit_s)
    assert driver.finish() in code
    [line] = driver.said()
    assert re.search(says, line), line
    assert line.endswith("Raise cluster.start_timeout_s if the machine is only slow.")


def test_a_start_may_take_longer_than_rays_own_limit(folder: Path) -> None:
    """A raylet that stands still for 35 s on Ray's clock, which is ten times as fast meanwhile; Ray itself waits for
    30. And its processes log no statistics, which they would begin with at once."""
    stop = """
def slow():
    kill("raylet", signal.SIGSTOP)
    from types import SimpleNamespace
    from ray._private import node
    began = time.monotonic()
    node.time = SimpleNamespace(**{**vars(time), "monotonic": lambda: began + 10 * (time.monotonic() - began)})
    time.sleep(3.5)
    kill("raylet", signal.SIGCONT)
    node.time = time
threading.Thread(target=slow, daemon=True).start()
"""
    look = """
        logs = Path(worker.global_worker.node.get_logs_dir_path())
        said = {name: (logs / name).read_text() for name in ("gcs_server.out", "raylet.out")}
        print(*(f"{name}: {bool(text)}, {'Event stats' in text}" for name, text in said.items()), sep="\\n")
"""
    driver = Driver(folder, look, beside=stop)
    assert driver.finish() == 0, driver.said()
    assert driver.said() == ["up", "gcs_server.out: True, False", "raylet.out: True, False"]
