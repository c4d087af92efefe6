"""What a teacher teaches of the laptop task, step by step, beside rewards: the table of docs/distillation.md.

    python benchmarks/distillation.py FOLDER     # runs what FOLDER lacks, a minute or two each, records and prints
    python benchmarks/distillation.py            # prints what was recorded

The teacher has seen demonstrations that show their work, and no others. The student has seen those of the task, of
which two thirds are careless. All runs start from the student and take one optimizer step a rollout, the learning rate
of the task, and 256 samples a step (32 prompts) unless said otherwise. `benchmarks/results/distillation-laptop.csv` has
a row for each step: mean reward of its samples, held-out reward after it (greedy), divergence from the teacher in nats
a token.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from pathlib import Path

from algorithms import LAPTOP, ROOT, SUPERVISED, slime

from slime.config.paths import resolve

RECORDED = ROOT / "benchmarks/results/distillation-laptop.csv"
DEMONSTRATIONS = "pkg://slime_rewards.math/data/arithmetic-sft.jsonl"
STARTED = (*LAPTOP, "model.init=checkpoint", "sft.num_steps=0", "run.num_steps=20", "eval.interval=1")
STARTED += ("train.checkpoint.interval=null",)
WAYS = {
    "grpo": ("algo=grpo",),
    "grpo, 64 samples": ("algo=grpo", "rollout.prompts_per_step=8"),
    "opd": ("algo=opd",),
    "opd, with rewards": ("algo=opd", "algo.advantage=grpo"),
    "opd, 64 samples": ("algo=opd", "rollout.samples_per_prompt=1", "rollout.prompts_per_step=64"),
}
SHOWN = (0, 1, 2, 3, 5, 10, 20)
"""Steps of the table."""
ENOUGH = 0.9
COLUMNS = {"reward": "rollout/reward_mean", "held_out": "eval/reward_mean", "teacher_kl": "train/teacher_kl"}


def careful(folder: Path) -> Path:
    """The demonstrations whose answers show their work."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = resolve(DEMONSTRATIONS).read_text().splitlines(keepends=True)
    kept = [row for row in rows if "=" in json.loads(row)["messages"][-1]["content"]]
    (folder / "careful.jsonl").write_text("".join(kept))
    return folder / "careful.jsonl"


def words_of(way: str, student: Path, teacher: Path) -> Sequence[str]:
    """Of a run."""
    taught = [f"algo.teacher.path={teacher}"] if "algo=opd" in WAYS[way] else []
    return [*STARTED, *WAYS[way], f"model.path={student}", *taught]


def learn(folder: Path) -> None:
    """All runs, and their rows."""
    student = slime(SUPERVISED, folder, "student") / "export"
    teacher = slime((*SUPERVISED, f"sft.path={careful(folder)}"), folder, "teacher") / "export"
    with RECORDED.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["way", "step", *COLUMNS])
        for way in WAYS:
            run = slime(words_of(way, student, teacher), folder, way.replace(", ", "-").replace(" ", "-"))
            for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
                values = (f"{row[key]:.4f}" if key in row else "" for key in COLUMNS.values())
                writer.writerow([way, row["step"], *values])


def held_out() -> dict[str, dict[int, float]]:
    """Way -> step -> held-out reward."""
    found: dict[str, dict[int, float]] = {}
    with RECORDED.open(newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["way"], {})[int(row["step"])] = float(row["held_out"])
    return found


def enough(steps: dict[int, float]) -> int | None:
    """The first step after which the held-out reward is `ENOUGH`."""
    return next((step for step, reward in sorted(steps.items()) if reward >= ENOUGH), None)


def table_row(way: str) -> str:
    """A way as a row of the page."""
    steps = held_out()[way]
    cells = [f"{steps[step]:.2f}" for step in SHOWN]
    return f"| {way} | {' | '.join(cells)} | {enough(steps) or 'not in 20'} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    args = parser.parse_args()
    if args.folder:
        learn(args.folder.resolve())
    print("\n".join(map(table_row, WAYS)))


if __name__ == "__main__":
    main()
