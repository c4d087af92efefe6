"""Processes that `chaos.py` kills while a run starts: what may come back does, and the run ends as if undisturbed."""

from __future__ import annotations

import random
import re
import time

import psutil
from chaos_parts import SEED, Table, quoted
from chaos_run import Chaos, reference, running

from slime_tools.drill.outcome import Outcome

WITHIN_S = 0.5
"""Of its own start, each is killed at a moment of this."""
VICTIMS = {
    "engine: HTTP server": ("engine's server", 1),
    "engine: scheduler": ("engine's scheduler", 1),
    "engine: detokenizer": ("engine's detokenizer", 1),
    "engine: HTTP server, at every start": ("engine's server", 4),
    "reward: guard": ("guard", 1),
    "reward: scorer": ("worker", 1),
    "trainer": ("trainer", 1),
    "GCS": ("gcs_server", 1),
    "raylet": ("raylet", 1),
}
"""The role of the process, and how often it is killed."""
OF_RAY = ("GCS", "raylet")
"""Killed once Ray is up: `plugins/cluster/tests/ray/test_node.py` kills them before."""
SAID = re.compile(r"^.* starts again \(\d of \d\)$", re.MULTILINE)


def starts() -> Table:
    moments, head = random.Random(SEED), ["kill -9 as it starts", "after", "exit", "told after", "it says", "bit-equal"]
    return [head, *(strike(who, *victim, moments.uniform(0, WITHIN_S)) for who, victim in VICTIMS.items())]


def strike(who: str, role: str, times: int, delay: float) -> list[str]:
    with running() as run:
        if who in OF_RAY:
            run.until(lambda: " s  starting 1 trainer" in run.text())
        seen = set[int]()
        for _ in range(times):
            process = appearing(run, role, seen)
            time.sleep(delay)
            process.kill()
            killed = time.monotonic()
        run.until(lambda: bool(SAID.search(run.text())))
        told, code = time.monotonic() - killed, run.finish()
        again = SAID.findall(run.text())
        lost = re.findall(r"^\[guard\] (a worker was lost: .*)", (run.path / "logs/reward.log").read_text(), re.M)
        said = run.last_line() if code else (again or lost or ["nothing"])[-1].replace(f"{run.folder}/", "")
        seconds = "-" if lost and not code else f"{told:.1f} s"
        same = "-" if code else "yes" if Outcome.of(run.path) == reference().result else "**NO**"
        return [who, f"{delay:.2f} s", str(code), seconds, quoted(said), same]


def appearing(run: Chaos, role: str, seen: set[int]) -> psutil.Process:
    """The next such process, as soon as there is one."""
    while True:
        assert run.process.poll() is None, run.text()
        process = run.member(role)
        if process and process.pid not in seen:
            seen.add(process.pid)
            return process
        time.sleep(0.01)
