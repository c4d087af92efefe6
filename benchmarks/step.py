"""Where the wall time of a reinforcement-learning step goes, on the laptop run or any other.

    python benchmarks/step.py                                   # glm4-tiny on this machine
    python benchmarks/step.py +model=... +cluster=... KEY=VALUE # any run; the first step is left out as warm-up

Runs slime as a user does, in a folder of its own, and reads the phases from its metrics.jsonl. `other` is what no
phase covers: Ray, Python between the phases, logging. The project promises less than 5 % of it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import conditions

from slime.observe.metrics import LOGPROB_DIFF, TOKENS_PER_S, Row, read_rows

LAPTOP = ["+model=glm4-tiny", "+cluster=local", "sft.num_steps=200", "run.num_steps=12", "eval.path=null"]
PROMISED_OTHER = 0.05


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
    lines += [f"{max(row[LOGPROB_DIFF] for row in rows):.2g} nats a token between engine and trainer, worst step"]
    verdict = "kept" if means["other"] / wall < PROMISED_OTHER else "MISSED"
    return "\n".join([*lines, f"other {means['other'] / wall:.1%}, promised < {PROMISED_OTHER:.0%}: {verdict}"])


def main() -> None:
    arguments = sys.argv[1:] or LAPTOP
    rows = steps_of(arguments)
    print(f"slime {' '.join(arguments)}\n{conditions()}; mean of {len(rows)} steps\n\n{table(rows)}")


if __name__ == "__main__":
    main()
