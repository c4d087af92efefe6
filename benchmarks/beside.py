"""What slime and its peers did on one GPU, read alike: start, seconds of a step by phase, tokens, memory and rewards.

    python benchmarks/against_trl.py --device cuda --alone --name "TRL, liger" --out FOLDER --model MODEL ...
    python benchmarks/against_verl.py --alone --name verl --out FOLDER --model MODEL ...
    python benchmarks/beside.py FOLDER --name "slime, ahead" --model MODEL +model=smollm2-135m ...  # slime alone
    python benchmarks/beside.py FOLDER                                            # one table of all that lies there

Each program leaves NAME.json in FOLDER, so that several settings of a peer stand in one table: of each column the best
of them is what slime is compared with. The first GPU of `CUDA_VISIBLE_DEVICES` is watched.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from machine import conditions

WARM_UP = 5
"""Steps that are not counted."""
LAST = 10
"""Steps at the end whose rewards are compared."""
PROMISED = 0.7
"""Of the best peer's step, start, seconds a token and memory."""
RUN = ["+model=qwen2.5-coder-0.5b", "+cluster=h200x1", "task=word-problems"]
OURS = "slime"
"""What slime's names begin with, in tables with peers."""
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
    """What `watched` saw: the rows, each with the time at which it was `seen`; when the program began; how it ended.

    `kept` has rows as `read_slime` gives them, and what a step is in words.
    """

    name: str
    rows: Sequence[Mapping[str, Any]]
    began: float
    peak_gib: float
    how: str
    size: str = ""


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
        which = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
        asks = ["nvidia-smi", f"--id={which}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
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


def slime(
    model: Path, out: Path, steps: int, limit_s: float, words: Sequence[str], name: str = OURS
) -> tuple[Watched, list[dict[str, float]]]:
    """Run slime with these words of its command line; its run directory is in `out`."""
    run = file_name(name)
    own = [f"model.path={model}", f"run.num_steps={steps}", f"run.dir={out}", f"run.name={run}"]
    command = [sys.executable, "-m", "slime", *words, *own]
    seen = watched(name, command, out / run / "metrics.jsonl", out / f"{run}.log", limit_s)
    return seen, read_slime(seen.rows)


def file_name(name: str) -> str:
    """What a program's files are called."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower())


def keep(out: Path, size: str, seen: Watched, rows: Sequence[Mapping[str, float]]) -> None:
    """Write what one program did to `out`."""
    told = asdict(seen) | {"rows": rows, "size": size}
    (out / f"{file_name(seen.name)}.json").write_text(json.dumps(told) + "\n")


def kept(out: Path) -> list[Watched]:
    """All that `keep` wrote to a folder, slime's first, each in the order in which they began."""
    found = [Watched(**json.loads(file.read_text())) for file in out.glob("*.json")]
    return sorted(found, key=lambda one: (not one.name.startswith(OURS), one.began))


def tell(out: Path, size: str, *programs: tuple[Watched, Sequence[Mapping[str, float]]], alone: bool) -> None:
    """Print the tables of the programs; what a peer did without slime is kept for a table of many."""
    if alone:
        keep(out, size, *programs[-1])
    print(report(size, *programs))


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
    columns = {
        name: (one.start, one.seconds["step"], 1 / one.tokens_per_s, one.peak_gib) for name, one in programs.items()
    }
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
    peers = {name: values for name, values in columns.items() if not name.startswith(OURS)}
    for ours in (name for name in columns if peers and name.startswith(OURS)):
        for number, what in enumerate(("start", "step", "seconds a token", "memory")):
            best = min(peers, key=lambda name: peers[name][number])
            if not peers[best][number]:
                continue  # no GPU, no memory
            ratio = columns[ours][number] / peers[best][number]
            verdict = "kept" if ratio <= PROMISED else "MISSED"
            lines.append(f"{what} of {ours} over {best}'s: {ratio:.2f}; promised at most {PROMISED}: {verdict}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of rows, output and NAME.json")
    parser.add_argument("--model", type=Path, help="Hugging Face folder; without it: the table of what lies in OUT")
    parser.add_argument("--name", default=OURS)
    parser.add_argument("--steps", type=int, default=40, help="warm-up included")
    parser.add_argument("--limit", type=float, default=200.0, metavar="SECONDS", help="start included")
    options, arguments = parser.parse_known_args()
    out = options.out.absolute()
    if options.model:
        from slime.compose.compose import compose

        out.mkdir(parents=True, exist_ok=True)
        given, model = words(RUN, arguments), options.model.absolute()
        step = size(compose([*given, f"model.path={model}"]), model)
        keep(out, step, *slime(model, out, options.steps, options.limit, given, options.name))
    found = kept(out)
    for step in dict.fromkeys(one.size for one in found):
        print(report(step, *((one, one.rows) for one in found if one.size == step)))


if __name__ == "__main__":
    main()
