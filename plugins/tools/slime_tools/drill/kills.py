"""Kills in a run that goes on meanwhile: at which moment, what the run says of it, and what it costs."""

from __future__ import annotations

import json
import random
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from slime.observe.metrics import read_rows
from slime.types import RL
from slime_cluster.ray.reaper import ITSELF
from slime_tools.drill.processes import DRIVER, GUARD, WORKER, members

POLL_S = 0.01
PATIENCE_S = 300.0
"""Without progress of a run that is waited for."""
TOLD_S, LAST_WORDS_S = 20.0, 10.0
"""In which a run that goes on names what it has lost, beyond two steps; and one that ended."""
NOUNS = {
    "trainer": "trainer-",
    **dict.fromkeys((GUARD, WORKER), "worker was lost|workers of the program were lost"),
    "agent's keeper": "agent was killed",
    "gcs_server": "gcs_server",
    "raylet": "raylet",
    "dashboard agent": "dashboard_agent",
    "runtime env agent": "runtime_env_agent",
    "reaper": ITSELF,
    **dict.fromkeys(("session of a host", "a host"), "the host was lost"),
    DRIVER: "ended without a word|or the run was killed",
}
"""What a line has that names the loss, as a pattern, beside how it ended; of an engine's processes the engine."""
ENDED = re.compile(r"SIGKILL|was killed|ended with|has ended|was lost|were lost")


class Started(Protocol):
    """A run that is going on."""

    process: subprocess.Popen[bytes]
    output: Path
    path: Path


@dataclass(frozen=True)
class Killed:
    """One kill.

    Attributes:
        role: of the process.
        step: that the run was behind then, of its stage.
        during: what the run said that it was doing.
        named: the line that names the loss; empty if there is none.
        seconds: until the run was behind where it had been, without the steps that it took meanwhile; where it ended,
            until then.
        code: with which the run ended, if it did.
    """

    role: str
    pid: int
    step: int
    during: str
    named: str
    seconds: float
    code: int | None


def position(run: Started) -> tuple[int, int]:
    """The stage (0: none yet, 1: supervised, 2: reinforcement) and the step that the run is behind."""
    rows = read_rows(run.path / "metrics.jsonl") if (run.path / "metrics.jsonl").exists() else []
    return (1 + (rows[-1]["stage"] == RL), rows[-1]["step"]) if rows else (0, 0)


def wait(run: Started, reached: Callable[[], bool], patience_s: float = PATIENCE_S) -> bool:
    """Until something is so, or the run has ended; returns whether it is so. Raises TimeoutError."""
    end = time.monotonic() + patience_s
    while not (found := reached()) and run.process.poll() is None:
        if time.monotonic() > end:
            raise TimeoutError(f"nothing came of it in {patience_s:g} s")
        time.sleep(POLL_S)
    return found


def during(run: Started) -> str:
    """What the run does now, by its own words."""
    with suppress(OSError, ValueError):
        now = json.loads((run.path / "logs/now.json").read_text())
        return " ".join(filter(None, [now["stage"], now["phase"] or (now["starting"] and "start")])) or "start"
    return "start"


def choose(run: Started, roles: Sequence[str], dice: random.Random) -> tuple[str, psutil.Process] | None:
    """One of the living processes of these roles: a role first, then one of them."""
    found: dict[str, list[psutil.Process]] = {}
    with suppress(psutil.NoSuchProcess):
        for role, process in members(psutil.Process(run.process.pid)):
            if role in roles and process.is_running():
                found.setdefault(role, []).append(process)
    if not found:
        return None
    role = dice.choice(sorted(found))
    return role, dice.choice(sorted(found[role], key=lambda process: process.pid))


def strike(run: Started, role: str, victim: psutil.Process, usual_s: float, patience_s: float = PATIENCE_S) -> Killed:
    """Kill it, and wait until the run is behind where it was, or has ended.

    Args:
        usual_s: seconds of a step of a run that is not hurt.

    Raises:
        TimeoutError: neither of both came.
    """
    doing, before = during(run), position(run)
    said = {file: file.stat().st_size for file in _files(run)}
    with suppress(psutil.NoSuchProcess):
        victim.kill()
    began, line = time.monotonic(), ""
    noticed: tuple[int, int] | None = None  # where the run was then: the step before may have been done all the same

    def is_behind() -> bool:
        nonlocal line, noticed
        line = line or named(run, role, victim.pid, said)
        if noticed is None and (line or time.monotonic() > began + TOLD_S + 2 * usual_s):
            noticed = position(run)
        return noticed is not None and position(run) > max(before, noticed)

    wait(run, is_behind, patience_s)
    seconds, code, after = time.monotonic() - began, run.process.poll(), position(run)
    end = time.monotonic() + LAST_WORDS_S
    while code is not None and not (line := line or named(run, role, victim.pid, said)) and time.monotonic() < end:
        time.sleep(POLL_S)
    taken = after[1] - before[1] if after[0] == before[0] else 1
    seconds = seconds if code else max(0.0, seconds - taken * usual_s)
    return Killed(role, victim.pid, before[1], doing, line, seconds, code)


def _files(run: Started) -> list[Path]:
    logs = [run.path / "logs" / name for name in ("reward.log", "program.log", "warnings.jsonl")]
    return [file for file in (run.output, *logs) if file.exists()]


def named(run: Started, role: str, pid: int, said: Mapping[Path, int]) -> str:
    """The first line behind what was `said` before that names what was killed, by its process or by its kind; empty if
    there is none."""
    kind = re.compile(rf"\b{pid}\b|{NOUNS.get(role, 'engine-|' + re.escape(role))}")
    for file in _files(run):
        with file.open("rb") as text:
            text.seek(said.get(file, 0))
            for line in text.read().decode(errors="replace").splitlines():
                if ENDED.search(line) and kind.search(line):
                    return line
    return ""
