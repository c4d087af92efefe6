"""A program that starts Ray as a run does, for tests that hurt it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from slime_cluster.ray.folders import PREFIX
from slime_testing.patience import Patience, family

DRIVER = """
import faulthandler, os, signal, sys, threading, time
from contextlib import suppress
from pathlib import Path

import psutil

from slime import __main__
from slime.verbs import train
from slime.config.schema import ClusterConfig
from slime_cluster.ray.reaper import reaped
from slime_cluster.ray.starter import ray_cluster

faulthandler.enable()  # SIGABRT prints the stacks of a driver that hangs

def kill(name, number=signal.SIGKILL):
    while True:
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):  # it has ended since
                if child.name() == name:
                    return child.send_signal(number)
        time.sleep(0.01)

def run(args):
    cluster = ClusterConfig(name="local", start_timeout_s={timeout_s})
    with reaped("{mark}") as reaper, ray_cluster(cluster, 2, mark="{mark}", note=reaper.note):
        import ray
        from ray._private import worker
        print("up", flush=True)
{inside}
    return 0

{beside}
train.run = run
sys.exit(__main__.main(["run.name=x"]))
"""
WAIT = """
        time.sleep(600)
"""


class Driver:
    """A program that starts Ray as a run does, and speaks as `slime` does."""

    def __init__(self, folder: Path, inside: str = WAIT, beside: str = "", timeout_s: float = 120) -> None:
        self.folder, self.output = folder, folder / "output.txt"
        mark = f"{os.getpid()}{time.monotonic_ns() % 1000}"
        program = DRIVER.format(mark=mark, inside=inside, beside=beside, timeout_s=timeout_s)
        environment = {**os.environ, "TMPDIR": str(folder), "HOME": str(folder)}
        environment.pop("RAY_TMPDIR", None)
        with self.output.open("ab") as output:
            command = [sys.executable, "-c", program]
            pipes = {"stdout": output, "stderr": output}
            self.process = subprocess.Popen(command, **pipes, env=environment, start_new_session=True)

    def finish(self) -> int:
        """Wait until it and all that it has started are gone; returns the exit code."""
        if not self._patience(120).wait_for(lambda: self.process.poll() is not None):
            self.process.send_signal(signal.SIGABRT)
            self.process.wait(30)
            raise AssertionError("\n".join(["it hangs", *self.said()]))
        left = Patience(60, lambda: [os.getpid()])
        assert left.wait_for(lambda: not self._left(), every_s=0.1), self._left()
        return self.process.returncode

    def _left(self) -> list[str]:
        """Folders of Ray, and processes that write into this test's: their output, or Ray's logs."""
        found = [path.name for path in self.folder.glob(f"{PREFIX}*")]
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if any(file.path.startswith(str(self.folder)) for file in process.open_files()):
                    found.append(process.name())
        return found

    def until_up(self) -> Driver:
        self.until_says("up")
        return self

    def until_says(self, word: str) -> None:
        self._patience(120).wait_for(lambda: word in self.said() or self.process.poll() is not None)

    def until_has(self, reached: str) -> None:
        """Wait until it has worked for a moment, has a child of that name, or has a raylet that has children."""
        process = psutil.Process(self.process.pid)

        def has() -> bool:
            if reached == "imports":
                return process.cpu_times().user > 0.3
            children = {child.name(): child for child in process.children()}
            return bool(children["raylet"].children()) if reached == "workers" else reached in children

        assert self._patience(120).wait_for(lambda: self.process.poll() is not None or _holds(has), every_s=0.01)
        assert self.process.poll() is None, self.said()

    def _patience(self, limit_s: float) -> Patience:
        return Patience(limit_s, lambda: family(self.process.pid))

    def said(self) -> list[str]:
        return self.output.read_text().splitlines()


def _holds(condition: Callable[[], bool]) -> bool:
    with suppress(psutil.Error, KeyError):  # a process is gone, or not there yet
        return condition()
    return False
