"""The launcher `beside`: its other hosts are this one, as often as `cluster.num_nodes` asks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slime.hookspecs import hookimpl
from slime.lifetime import end_with_parent
from slime.topology.launcher import Launcher, Order, ThisHost


@dataclass
class Beside:
    name: str
    number: int
    log: Path
    process: subprocess.Popen[bytes]

    def end(self) -> str:
        code = self.process.poll()
        return "" if code is None else f"it ended with exit code {code}"

    def succeeded(self) -> bool:
        return self.process.poll() == 0

    def todo(self) -> str:
        return f"Read {self.log}."


class BesideLauncher:
    def problems(self, cluster):
        return []

    def hosts(self, cluster) -> Sequence[str]:
        return [f"beside-{number}" for number in range(cluster.num_nodes)]

    def this_host(self, cluster) -> ThisHost:
        return ThisHost(0, "127.0.0.1")

    @contextmanager
    def run(self, orders: Mapping[str, Order], logs: Path) -> Iterator[Sequence[Beside]]:
        begun: list[Beside] = []
        try:
            for name, order in orders.items():
                begun.append(_begin(name, order, logs / f"{name}.log"))
            yield begun
        finally:
            for each in begun:
                each.process.kill()
                each.process.wait()


def _begin(name: str, order: Order, log: Path) -> Beside:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", order["module"], *order["arguments"]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **order["environment"]},
            cwd=order["folder"] or None,
            preexec_fn=partial(end_with_parent, os.getpid()),
        )
    return Beside(name, order["number"], log, process)


@hookimpl
def slime_launchers() -> Mapping[str, type[Launcher]]:
    return {"beside": BesideLauncher}
