"""What slime and a peer did on one GPU, read alike: start, seconds of a step by phase, tokens, memory and rewards.

`against_verl.py` and `against_trl.py --device cuda` use it.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from machine import conditions

WARM_UP = 5
"""Steps that are not counted."""
LAST = 10
"""Steps at the end whose rewards are compared."""
PROMISED = 0.7
"""Of a peer's step and start."""
OWN = ["eval.path=null", "train.checkpoint.interval=0", "train.checkpoint.export_hf=false", "run.progress=false"]
POLL_S = 0.5
KILL_S = 20.0
"""What a program may take to end when its time is over, before it is killed."""


@dataclass(frozen=True)
class Measured:
    """One program: `start` is seconds to the beginning of its first step; `seconds` of a step by phase, medians."""

    start: float
    seconds: Mapping[str, float]
    tokens_per_s: float
    rewards: Sequence[float]
    peak_gib: float


@dataclass(frozen=True)
class Watched:
    """What `watched` saw: the rows, each with the time at which it was `seen`; when the program began; how it ended."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    began: float
    peak_gib: float
    how: str


def read_slime(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """A row a step: its end, phases, tokens of responses and reward."""
    rows = [row for row in rows if row["stage"] == "rl" and row["step"] > 0]
    return [row_of(row["time"], "seconds/", row, row["rollout/num_tokens"], row["rollout/reward_mean"]) for row in rows]


def row_of(end: float, prefix: str, values: Mapping[str, Any], tokens: float, reward: float) -> dict[str, float]:
    phases = {name.removeprefix(prefix): float(value) for name, value in values.items() if name.startswith(prefix)}
    return {**phases, "end": end, "tokens": tokens, "score": reward}


def measured(rows: Sequence[Mapping[str, float]], began: float, peak_gib: float) -> Measured:
    counted = rows[WARM_UP:]
    phases = [name for name in counted[-1] if name not in ("end", "tokens", "score")]
    return Measured(
        rows[0]["end"] - rows[0]["step"] - began,
        {name: statistics.median(row.get(name, 0.0) for row in counted) for name in phases},
        sum(row["tokens"] for row in counted) / sum(row["step"] for row in counted),
        [row["score"] for row in rows],
        peak_gib,
    )


@contextmanager
def peak_of_gpu() -> Iterator[list[float]]:
    """GiB in use on the first GPU, whoever has them; the largest is the peak. Nothing where there is no GPU."""
    seen, over = [0.0], threading.Event()
    if shutil.which("nvidia-smi") is None:
        yield seen
        return

    def poll() -> None:
        asks = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while not over.wait(POLL_S):
            seen.append(float(subprocess.check_output(asks, text=True).split()[0]) / 1024)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def end(process: subprocess.Popen[bytes]) -> None:
    """End a program and all that it started: first as a signal asks, then by force, so that no GPU memory stays."""
    started = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(KILL_S)
    for each in [process, *started]:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()
    until = time.time() + KILL_S
    while any(map(alive, started)) and time.time() < until:
        time.sleep(0.02)


def alive(process: psutil.Process) -> bool:
    """Whether it holds memory still."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def watched(name: str, command: Sequence[str], rows: Path, log: Path, limit_s: float, **environment: str) -> Watched:
    """Run a program that adds a line to `rows` after each step, and end it when its time is over."""
    found: list[dict[str, Any]] = []
    began = time.time()
    with (
        log.open("wb") as output,
        peak_of_gpu() as peaks,
        subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            while process.poll() is None and time.time() < began + limit_s:
                time.sleep(0.02)
                found += _more(rows, len(found))
            code = process.poll()
        finally:
            if process.poll() is None:
                end(process)
    found += _more(rows, len(found))
    how = f"ended with code {code}" if code is not None else f"was ended after {limit_s:.0f} s"
    return Watched(name, found, began, max(peaks), f"{name} {how}, with {len(found)} rows; its output: {log}")


def words(run: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Of slime's command line: those of `run` that the arguments do not replace, and the arguments."""
    given = {argument.partition("=")[0] for argument in arguments}
    return [*(word for word in [*run, *OWN] if word.partition("=")[0] not in given), *arguments]


def slime(model: Path, out: Path, steps: int, limit_s: float, words: Sequence[str]) -> Watched:
    """Run slime with these words of its command line; its run directory is `out/slime`."""
    own = [f"model.path={model}", f"run.num_steps={steps}", f"run.dir={out}", "run.name=slime"]
    command = [sys.executable, "-m", "slime", *words, *own]
    return watched("slime", command, out / "slime/metrics.jsonl", out / "slime.log", limit_s)


def size(cfg: Any, model: Path) -> str:
    """What a step of a config of slime is, in words."""
    rollout = cfg.rollout
    samples = f"{rollout.prompts_per_step} x {rollout.samples_per_prompt} samples"
    return f"{model.name}: a step has {samples} of at most {rollout.sampling.max_response_tokens} tokens"


def _more(rows: Path, num_seen: int) -> list[dict[str, Any]]:
    lines = rows.read_text().split("\n")[:-1] if rows.exists() else []
    return [json.loads(line) | {"seen": time.time()} for line in lines[num_seen:]]


def report(size: str, *programs: tuple[Watched, Sequence[Mapping[str, float]]]) -> str:
    """Tables of those that got beyond the warm-up, and how each ended."""
    ends = "\n".join(watched.how for watched, _ in programs)
    done = {one.name: measured(rows, one.began, one.peak_gib) for one, rows in programs if len(rows) > WARM_UP}
    return "\n\n".join([conditions(), size, ends, table(done) if done else f"None got beyond {WARM_UP} steps."])


def table(programs: Mapping[str, Measured]) -> str:
    """Of each program its phases, then all in one table; ratios of the first to the second, where both are there."""
    lines = []
    for name, one in programs.items():
        lines += [f"| {name} | seconds of a step |", "|---|---|"]
        lines += [f"| {phase} | {value:.3f} |" for phase, value in one.seconds.items()] + [""]
    lines += [
        "| | steps | start, s | step, s | tokens/s | GiB at the peak | reward of the last steps |",
        "|---|---|---|---|---|---|---|",
    ]
    last = min(len(one.rewards) for one in programs.values())
    for name, one in programs.items():
        reward = statistics.fmean(one.rewards[max(0, last - LAST) : last])
        rest = f"{one.tokens_per_s:,.0f} | {one.peak_gib:.1f} | {reward:.3f} |"
        lines.append(f"| {name} | {len(one.rewards)} | {one.start:.0f} | {one.seconds['step']:.3f} | {rest}")
    lines.append(f"\nRewards are those of steps {max(1, last - LAST + 1)} to {last} of each.")
    if len(programs) == 2:
        (_, ours), (name, theirs) = programs.items()
        for what, ratio in (
            ("step", ours.seconds["step"] / theirs.seconds["step"]),
            ("start", ours.start / theirs.start),
        ):
            verdict = "kept" if ratio <= PROMISED else "MISSED"
            lines.append(f"{what} of slime over {name}'s: {ratio:.2f}; promised at most {PROMISED}: {verdict}")
    return "\n".join(lines)
