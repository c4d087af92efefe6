"""What each algorithm learns of the laptop task, by steps: the curves of docs/algorithms.md.

    python benchmarks/algorithms.py FOLDER     # runs what FOLDER lacks, a minute each, records and draws
    python benchmarks/algorithms.py            # draws docs/images/algorithms.png from what was recorded

All runs start from the same supervised model, take the same prompts and four optimizer steps a rollout, so that the
ratios differ from 1 and clips act. Each keeps the bounds of its file in conf/algo and the learning rate of the task:
none is tuned, but that the critic of `ppo` learns a hundred times as fast, from one sample a prompt.
`benchmarks/results/algorithms-laptop.csv` has a row for each step: mean reward of its samples, held-out reward after it
(greedy), and entropy in nats a token. `sft-laptop.csv` has those that the supervised model comes from: loss and
entropy, each a mean of ten steps. `opd` is drawn from what `benchmarks/distillation.py` recorded, with one optimizer
step a rollout.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS, PICTURE = ROOT / "benchmarks/results", ROOT / "docs/images/algorithms.png"
RECORDED, OF_TEACHERS = RESULTS / "algorithms-laptop.csv", RESULTS / "distillation-laptop.csv"
OF_DEMONSTRATIONS = RESULTS / "sft-laptop.csv"
LAPTOP = ("+model=glm4-tiny", "+cluster=local", "run.progress=false")
SUPERVISED = (*LAPTOP, "algo=sft", "eval.path=null")
REINFORCED = (*LAPTOP, "model.init=checkpoint", "sft.num_steps=0", "run.num_steps=20", "eval.interval=1")
REINFORCED += ("train.steps_per_rollout=4", "train.checkpoint.interval=null")
ALGORITHMS = {
    "grpo": ("algo=grpo",),
    "dr_grpo": ("algo=dr_grpo",),
    "dapo": ("algo=dapo", "filter=dynamic-sampling"),
    "rloo": ("algo=rloo",),
    "reinforce_pp": ("algo=reinforce_pp",),
    "reinforce_pp_baseline": ("algo=reinforce_pp_baseline",),
    "gspo": ("algo=gspo",),
    "cispo": ("algo=cispo",),
    "sapo": ("algo=sapo",),
    "dppo": ("algo=dppo",),
    "ppo": ("algo=ppo", "rollout.samples_per_prompt=1", "rollout.prompts_per_step=256", "algo.critic.lr=1e-3"),
}
SEEDS = (1,)
PANELS = {
    "GRPO's loss": ("grpo", "dr_grpo", "dapo"),
    "estimators": ("grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"),
    "objectives": ("grpo", "gspo", "cispo", "sapo", "dppo"),
    "a critic, one sample a prompt": ("grpo", "ppo"),
}
TAUGHT = ("grpo", "opd", "opd, with rewards")
"""Of a panel of its own, with one optimizer step a rollout."""
AVERAGED = 10
"""Supervised steps of a row."""
COLOURS = ("#888888", "#3d85d8", "#e0752d", "#3fa56b", "#a36bd1")
COLUMNS = {"reward": "rollout/reward_mean", "held_out": "eval/reward_mean", "entropy": "train/entropy"}


def slime(words: Sequence[str], folder: Path, name: str) -> Path:
    """Run it, unless it is there; returns its folder."""
    if not (folder / name / "export").exists():
        command = [sys.executable, "-m", "slime", *words, f"run.dir={folder}", f"run.name={name}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
    return folder / name


def learn(folder: Path) -> None:
    """All runs, and their rows."""
    supervised = slime(SUPERVISED, folder, "sft")
    record_demonstrations(supervised)
    model = supervised / "export"
    with RECORDED.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["algo", "seed", "step", *COLUMNS])
        for seed in SEEDS:
            for name, words in ALGORITHMS.items():
                given = (*REINFORCED, *words, f"model.path={model}", f"run.seed={seed}")
                rows = (slime(given, folder, f"{name}-{seed}") / "metrics.jsonl").read_text().splitlines()
                for row in map(json.loads, rows):
                    values = (f"{row[key]:.4f}" if key in row else "" for key in COLUMNS.values())
                    writer.writerow([name, seed, row["step"], *values])


def record_demonstrations(run: Path) -> None:
    """The supervised steps of a run, ten to a row."""
    rows = [json.loads(row) for row in (run / "metrics.jsonl").read_text().splitlines()]
    learnt = [row for row in rows if row["stage"] == "sft" and "train/loss" in row]
    with OF_DEMONSTRATIONS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", "loss", "entropy"])
        for start in range(0, len(learnt), AVERAGED):
            ten = learnt[start : start + AVERAGED]
            means = (statistics.fmean(row[f"train/{name}"] for row in ten) for name in ("loss", "entropy"))
            writer.writerow([ten[-1]["step"], *(f"{mean:.4f}" for mean in means)])


def curves(column: str, recorded: Path = RECORDED, by: str = "algo") -> dict[str, dict[int, float]]:
    """Algorithm -> step -> mean over the seeds."""
    found: dict[str, dict[int, list[float]]] = {}
    with recorded.open(newline="") as file:
        for row in csv.DictReader(file):
            if row[column]:
                found.setdefault(row[by], {}).setdefault(int(row["step"]), []).append(float(row[column]))
    return {name: {step: statistics.fmean(each) for step, each in steps.items()} for name, steps in found.items()}


def table_row(name: str) -> str:
    """An algorithm as a row of the page: held-out reward after 0, 2, 5, 10 and 20 steps, and the entropy at the end."""
    held_out, entropy = curves("held_out")[name], curves("entropy")[name]
    values = " | ".join(f"{held_out[step]:.2f}" for step in (0, 2, 5, 10, 20))
    return f"| `{name}` | {values} | {entropy[20]:.2f} |"


def draw(out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(2, 3, figsize=(12, 7.2), layout="constrained")
    *axes, last = grid.flat
    held_out, taught = curves("held_out"), curves("held_out", OF_TEACHERS, "way")
    panels = [(title, {name: held_out[name] for name in names}) for title, names in PANELS.items()]
    panels.append(("a teacher, one optimizer step", {name: taught[name] for name in TAUGHT}))
    for axis, (title, lines) in zip(axes, panels, strict=True):
        for colour, (name, line) in zip(COLOURS, lines.items(), strict=False):
            axis.plot(*zip(*sorted(line.items()), strict=True), color=colour, label=name, marker=".")
        axis.set(title=title, xlabel="step", ylabel="held-out reward", ylim=(0.3, 1.01))
        axis.legend(loc="lower right", fontsize=8)
    with OF_DEMONSTRATIONS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    steps = [int(row["step"]) for row in rows]
    for colour, name in zip(COLOURS[1:], ("loss", "entropy"), strict=False):
        last.plot(steps, [float(row[name]) for row in rows], color=colour, label=f"sft: {name}")
    last.set(title="demonstrations", xlabel="supervised step", ylabel="nats a token", yscale="log")
    last.legend(loc="upper right", fontsize=8)
    for axis in grid.flat:
        axis.grid(alpha=0.3)
    figure.savefig(out, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    args = parser.parse_args()
    if args.folder:
        learn(args.folder.resolve())
    draw(PICTURE)
    print("\n".join(map(table_row, ALGORITHMS)))


if __name__ == "__main__":
    main()
