"""Engines that `chaos.py` kills under load, and that come back: the run must end as the one that nobody disturbs."""

from __future__ import annotations

import random
import re
import time
from contextlib import suppress

import psutil
from chaos_parts import SEED, Table, folder
from chaos_run import SETTINGS, Chaos

from slime_tools.drill.outcome import Outcome
from slime_tools.drill.processes import members, role_of

LASTING = {
    **SETTINGS,
    "sft.num_steps": 2,
    "run.num_steps": 90,
    "observe.zero_variance_steps": 0,
    "train.optimizer.lr": 1e-4,
    "train.checkpoint.interval": 100,
}
"""Long enough for an engine to come back while the other one has its requests; samples differ to the end."""
TWO = {**LASTING, "rollout.engines.default.devices": 2, "rollout.restarts": 20}
VICTIMS = ("scheduler", "server", "keeper")
MOMENTS = (
    (("collect", 2), ("publish", 1), ("publish", 2), ("collect", 2), ("train_rl", 2), ("collect", 1)),
    (("publish", 2), ("collect", 1), ("collect", 2), ("train_rl", 2), ("publish", 2), ("collect", 1)),
)
"""Of each run, in which verb a process is killed, and of how many of its two engines."""
BACK = re.compile(r"takes requests again, (\d+) s after its end$", re.MULTILINE)


def returns() -> Table:
    """Every kill waits for the return of the engine before it."""
    rows, moments = list[list[str]](), random.Random(SEED)
    with folder() as path:
        expected = Outcome.of(Chaos(path, settings=LASTING).start().succeed().path)
    for strikes in MOMENTS:
        with folder() as path:
            run = Chaos(path, settings=TWO).start()
            try:
                kills = [kill(run, *strike, moments) for strike in strikes]
                code = run.finish()
                same = "yes" if code == 0 and Outcome.of(run.path) == expected else f"**NO** (exit {code})"
                ended = run.last_line() if code else "-"
                rows += [[*row, same, ended] for of_moment in kills for row in of_moment]
            finally:
                if run.process.poll() is None:
                    run.kill()
                run.strays()
    return [["kill -9 of", "in", "serves again after", "in the end bit-equal", "it says"], *rows]


def kill(run: Chaos, verb: str, count: int, moments: random.Random) -> list[list[str]]:
    """One of the processes of so many engines, at one moment."""
    run.reach(verb)
    engines = sorted(keepers(run), key=lambda keeper: keeper.pid)
    struck = moments.sample(engines, count)
    kinds = [moments.choice(VICTIMS) for _ in struck]
    victims = [victim(keeper, kind) for keeper, kind in zip(struck, kinds, strict=True)]
    before = len(BACK.findall(run.text()))
    time.sleep(moments.uniform(0, 0.05))
    for process in victims:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    run.until(lambda: len(BACK.findall(run.text())) == before + len(victims))
    seconds = [f"{seconds} s" for seconds in BACK.findall(run.text())[before:]]
    seconds += ["not before the end"] * (len(victims) - len(seconds))
    at_once = ", both at once" if count > 1 else ""
    return [[kind, f"{verb}{at_once}", took] for kind, took in zip(kinds, seconds, strict=True)]


def keepers(run: Chaos) -> list[psutil.Process]:
    return [each for role, each in members(psutil.Process(run.process.pid)) if role == "engine's keeper"]


def victim(keeper: psutil.Process, kind: str) -> psutil.Process:
    """The keeper, or one of what it keeps."""
    below = {role_of(each): each for each in keeper.children(recursive=True)}
    return keeper if kind == "keeper" else below[f"engine's {kind}"]
