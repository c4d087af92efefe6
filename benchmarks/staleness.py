"""Whole runs at `rollout.max_staleness` 0, 1 and 2: seconds of a step, what overlapped, and what was learnt.

    python benchmarks/staleness.py +model=glm4-tiny +cluster=local run.num_steps=60       # a laptop's two cores
    python benchmarks/staleness.py +model=glm4-tiny +cluster=local --publish keep abort   # other ways to publish, at 1
    python benchmarks/staleness.py +model=smollm2-135m +cluster=h200x2-split model.path=models/SmolLM2 # two GPUs
    python benchmarks/staleness.py +model=smollm2-135m +cluster=h200x4-split model.path=models/SmolLM2 # 2 + 2 GPUs

The words are those of a run. Runs come one after the other, in folders of their own under `--folder`; one that is
finished is not run again. Of seconds the median over the steps is shown, without the first three; tokens/s are those
that these steps trained on, by the mean. "Idle" is the share of their time in which a GPU ran nothing: the mean, and of
each, trainers' first. Alone on its machine, or the figures say nothing.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from machine import conditions
from step import Sample, idle_shares, utilization

from slime.observe.metrics import read_rows

WARM_UP = 3
COLUMNS = ("step", "generate", "train", "publish", "other")
"""Of `seconds/...`."""


def settings(bound: int, publish: str | None, folder: Path) -> list[str]:
    """What a run has beside the words that were given."""
    name = f"staleness-{bound}" + (f"-{publish}" if publish else "")
    words = [f"run.dir={folder}", f"run.name={name}", "run.progress=false"]
    words += [f"rollout.max_staleness={bound}"] if bound else []
    return words + ([f"rollout.publish={publish}"] if publish else [])


def row(name: str, rows: Sequence[Mapping[str, Any]], samples: Sequence[Sample] = ()) -> str:
    """A line of the table, from the rows of metrics.jsonl and what the GPUs did meanwhile."""
    steps = [one for one in rows if one["stage"] == "rl" and "train/loss" in one]
    timed = steps[WARM_UP:] or steps
    seconds = [statistics.median(one.get(f"seconds/{phase}", 0.0) for one in timed) for phase in COLUMNS]
    tokens = sum(one["rollout/num_tokens"] for one in timed)
    overlapped = sum(one.get("rollout/overlap_share", 0.0) * one["rollout/num_tokens"] for one in timed)
    rate = sum(one["train/num_tokens"] for one in timed) / sum(one["seconds/step"] for one in timed)
    scores = [one["eval/reward_mean"] for one in rows if "eval/reward_mean" in one]
    lag = statistics.fmean(one["rollout/weight_lag_mean"] for one in timed)
    shares = idle_shares(samples, timed) if samples else []
    idle = f"{statistics.fmean(shares):.0%} ({', '.join(f'{share:.0%}' for share in shares)})" if shares else ""
    cells = [name, *(f"{value:.2f}" for value in seconds), f"{rate:,.0f}", f"{overlapped / max(1, tokens):.0%}"]
    return f"| {' | '.join([*cells, f'{lag:.2f}', idle, f'{scores[-1]:.3f}' if scores else ''])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="+")
    parser.add_argument("--bounds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--publish", nargs="+", default=[], choices=["keep", "abort"])
    parser.add_argument("--folder", type=Path, default=Path("runs/staleness"))
    args = parser.parse_intermixed_args()
    folder = args.folder.absolute()
    print(conditions())
    print(
        "\n| run |",
        " | ".join(f"{phase}, s" for phase in COLUMNS),
        "| tokens/s | overlapped | lag | idle | held-out reward |",
    )
    print("|---" * (len(COLUMNS) + 6) + "|", flush=True)
    for bound, publish in [*((bound, None) for bound in args.bounds), *((1, way) for way in args.publish)]:
        words = settings(bound, publish, folder)
        name = words[1].partition("=")[2]
        samples: Sequence[Sample] = ()
        if not (folder / name / "summary.txt").exists():
            with utilization() as samples:
                done = subprocess.run([sys.executable, "-m", "slime", *args.words, *words], stdout=subprocess.DEVNULL)
            if done.returncode:
                sys.exit(done.returncode)
        print(row(name, read_rows(folder / name / "metrics.jsonl"), samples), flush=True)


if __name__ == "__main__":
    main()
