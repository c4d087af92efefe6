"""Where the wall time of a reinforcement-learning step goes, on the laptop run or any other.

    python benchmarks/step.py                                   # glm4-tiny on this machine
    python benchmarks/step.py +model=... +cluster=... KEY=VALUE # any run; the first step is left out as warm-up

Runs slime as a user does, in a folder of its own, and reads the phases from its metrics.jsonl. `other` is what no
phase covers: Ray, Python between the phases, logging. The project promises less than 5 % of it. Where there are GPUs,
each is asked several times a second for how much of the time it ran a kernel, whichever process's.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from machine import conditions

from slime.observe.metrics import LOGPROB_DIFF, TOKENS_PER_S, Row, read_rows

LAPTOP = ["+model=glm4-tiny", "+cluster=local", "sft.num_steps=200", "run.num_steps=12", "eval.path=null"]
PROMISED_OTHER = 0.05
SAMPLE_S = 0.2

Sample = tuple[float, list[float]]
"""Unix time, and of each GPU the share of the last moment, a sixth of a second to one, in which it ran a kernel."""


@contextmanager
def utilization() -> Iterator[list[Sample]]:
    """The list that fills up while the block runs; it stays empty without GPUs."""
    samples: list[Sample] = []
    devices, ended = range(torch.cuda.device_count()), threading.Event()

    def watch() -> None:
        while not ended.wait(SAMPLE_S):
            samples.append((time.time(), [torch.cuda.utilization(device) / 100 for device in devices]))

    thread = threading.Thread(target=watch)
    if devices:
        thread.start()
    try:
        yield samples
    finally:
        ended.set()
        if devices:
            thread.join()


def idle_shares(samples: Sequence[Sample], rows: Sequence[Row]) -> list[float]:
    """Of each GPU the share of the steps' time in which it ran nothing."""
    first, last = rows[0]["time"] - rows[0]["seconds/step"], rows[-1]["time"]
    shares = [shares for when, shares in samples if first <= when <= last]
    return [1 - statistics.fmean(of_device) for of_device in zip(*shares, strict=True)]


def steps_of(arguments: list[str]) -> list[Row]:
    """The metrics of every step after the first of one run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "slime", *arguments, f"run.dir={folder}"]
        subprocess.run(command, check=True, stdout=sys.stderr)
        (metrics,) = Path(folder).glob("*/metrics.jsonl")
        return [row for row in read_rows(metrics) if row["stage"] == "rl" and row["step"] > 1 and "seconds/step" in row]


def table(rows: list[Row]) -> str:
    """Mean seconds and share of every phase."""
    wall = statistics.fmean(row["seconds/step"] for row in rows)
    names = dict.fromkeys(name for row in rows for name in row if name.startswith("seconds/"))
    means = {name.removeprefix("seconds/"): statistics.fmean(row.get(name, 0.0) for row in rows) for name in names}
    means.pop("step")
    lines = [f"{'phase':<12}{'s':>9}{'share':>9}"]
    lines += [f"{name:<12}{seconds:>9.3f}{seconds / wall:>9.1%}" for name, seconds in means.items()]
    lines += [f"{'step':<12}{wall:>9.3f}{1:>9.1%}", ""]
    lines += [f"{statistics.fmean(row[TOKENS_PER_S] for row in rows):,.0f} generated tokens/s over the whole step"]
    mean, most = (max(row[name] for row in rows if name in row) for name in (LOGPROB_DIFF, "train/logprob_diff_max"))
    lines += [
        f"engine and trainer differ by {mean:.2g} nats a token on average in the worst step, by {most:.2g} at most"
    ]
    verdict = "kept" if means["other"] / wall < PROMISED_OTHER else "MISSED"
    return "\n".join([*lines, f"other {means['other'] / wall:.1%}, promised < {PROMISED_OTHER:.0%}: {verdict}"])


def main() -> None:
    arguments = sys.argv[1:] or LAPTOP
    with utilization() as samples:
        rows = steps_of(arguments)
    print(f"slime {' '.join(arguments)}\n{conditions()}; mean of {len(rows)} steps\n\n{table(rows)}")
    if idle := idle_shares(samples, rows):
        print(f"GPU idle {statistics.fmean(idle):.1%} of the time ({', '.join(f'{share:.1%}' for share in idle)})")


if __name__ == "__main__":
    main()
