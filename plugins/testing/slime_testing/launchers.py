"""The contract test of a launcher, to be called from a plugin's own tests.

from slime_testing.launchers import check_launcher

def test_contract(tmp_path: Path) -> None:
    check_launcher("ssh", tmp_path, num_nodes=2, hostfile="hosts")

The hosts must see `tmp_path` by the same path, and have slime.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slime import plugins
from slime.config.schema import ClusterConfig
from slime.topology.launcher import Launcher, Order, lost
from slime_testing.heartbeat import VARIABLE
from slime_testing.patience import Patience, family
from slime_testing.plugins import check_light

LIMIT_S = 60.0
"""For a process on another host to begin, or to end; less the time for which it, or what waits for it, had no core."""
STILL_S = 2.0
"""A file that is not written for so long has nobody who writes it."""
_POLL_S = 0.1


def check_launcher(name: str, folder: Path, **keys: Any) -> None:
    """Assert that a launcher is well installed, and that what it starts elsewhere begins, ends and fails as it should.

    Args:
        folder: empty, and seen by all hosts.
        keys: of the section `cluster`, with `num_nodes`: at least two.

    Raises:
        AssertionError: a part of the contract is broken; says which.
        SlimeError: the launcher is not installed, or knows no hosts.
    """
    registry = plugins.load().launchers
    check_light(registry.get(name))
    launcher, cluster = registry.create(name), ClusterConfig(name="check", launcher=name, **keys)
    assert isinstance(launcher, Launcher), f"launcher '{name}' lacks a part of its protocol"
    assert list(launcher.problems(cluster)) == [], "the cluster of this check cannot be launched so"
    hosts, this = launcher.hosts(cluster), launcher.this_host(cluster)
    assert len(hosts) == cluster.num_hosts > 1, f"hosts() names {len(hosts)} of {cluster.num_hosts}"
    assert this.address, "this_host() says at which address the others reach this one"
    others = [(number, host) for number, host in enumerate(hosts) if number != this.number]
    assert len(others) == len(hosts) - 1, f"this_host() is number {this.number} of {len(hosts)}"
    _check_block(launcher, others, folder)
    _check_failure(launcher, others, folder)
    _check_death_of_driver(name, others, folder, keys)


def beating(others: Sequence[tuple[int, str]], folder: Path, word: str) -> dict[str, Order]:
    """Orders that write `folder/<number>` as long as they last."""
    return {
        host: _order(number, "slime_testing.heartbeat", [str(folder / str(number))], word) for number, host in others
    }


def _order(number: int, module: str, arguments: Sequence[str], word: str = "") -> Order:
    environment = {VARIABLE: word}
    return Order(number=number, mark="check", environment=environment, folder="", module=module, arguments=arguments)


def _check_block(launcher: Launcher, others: Sequence[tuple[int, str]], folder: Path) -> None:
    word = secrets.token_hex(4)
    with launcher.run(beating(others, folder, word), folder) as processes:
        assert sorted(process.number for process in processes) == [number for number, _ in others]
        for number, host in others:
            file = folder / str(number)
            begun = _within(lambda file=file: file.exists() and word in file.read_text())  # type: ignore[misc]
            assert begun, f"{host}: the order was not carried out with its environment"
        assert [process.end() for process in processes] == [""] * len(others), "what lasts has not ended"
        assert lost(processes, "checking") is None
    _check_gone(others, folder, "the block has ended")


def _check_failure(launcher: Launcher, others: Sequence[tuple[int, str]], folder: Path) -> None:
    orders = {host: _order(number, "slime_testing.no_such_module", []) for number, host in others}
    with launcher.run(orders, folder) as processes:
        for process in processes:
            assert _within(lambda process=process: process.end() != ""), "an order that fails ends"  # type: ignore[misc]
            assert not process.succeeded(), "a module that is not there is a fault"
            assert process.todo(), "todo() says what to do"
            assert process.log.is_file(), f"{process.log} has what it printed"
        death = lost(processes, "checking")
        assert death
        assert processes[0].name in str(death)


def _check_death_of_driver(name: str, others: Sequence[tuple[int, str]], folder: Path, keys: dict[str, Any]) -> None:
    for number, _ in others:
        (folder / str(number)).unlink()
    command = [sys.executable, "-m", "slime_testing.launchers", name, str(folder), json.dumps(keys)]
    driver = subprocess.Popen(command)
    begun = _within(lambda: all((folder / str(number)).exists() for number, _ in others))
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert begun, "the orders of another driver were not carried out"
    _check_gone(others, folder, "the driver was killed")


def _check_gone(others: Sequence[tuple[int, str]], folder: Path, why: str) -> None:
    for number, host in others:
        gone = _within(lambda number=number: _is_still(folder / str(number)))  # type: ignore[misc]
        assert gone, f"{host}: what ran there outlives {LIMIT_S:g} s after {why}"


def _is_still(file: Path) -> bool:
    before = file.read_text()
    time.sleep(STILL_S)
    return file.read_text() == before


def _within(condition: Callable[[], bool]) -> bool:
    return Patience(LIMIT_S, lambda: family(os.getpid())).wait_for(condition, every_s=_POLL_S)


def main() -> None:
    """A driver that has its orders carried out until it is killed."""
    name, folder, keys = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    cluster, launcher = ClusterConfig(name="check", launcher=name, **keys), plugins.load().launchers.create(name)
    this = launcher.this_host(cluster)
    others = [(number, host) for number, host in enumerate(launcher.hosts(cluster)) if number != this.number]
    with launcher.run(beating(others, folder, "driver"), folder):
        time.sleep(10 * LIMIT_S)


if __name__ == "__main__":
    main()
