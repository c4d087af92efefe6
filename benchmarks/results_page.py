"""The pictures and the rows of docs/results.md, made of the small files in benchmarks/results.

    python benchmarks/results_page.py                          # draws docs/images/results-*.png, prints the rows
    python benchmarks/results_page.py --add NAME FILE metrics.jsonl      # first appends a run to FILE.csv as NAME

A file has a row for each step of its runs: seconds since the first row, reward, held-out reward, mean length of a
response in tokens, entropy in nats a token, share of groups whose rewards are all equal, and seconds of the step; and
where the model has tools, their calls a sample.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS, IMAGES = ROOT / "benchmarks/results", ROOT / "docs/images"
COLUMNS = {
    "reward": ("rollout/reward_mean", 4),
    "held_out": ("eval/reward_mean", 4),
    "length": ("rollout/response_length_mean", 1),
    "entropy": ("train/entropy", 4),
    "zero_variance": ("rollout/zero_variance_share", 3),
    "step_seconds": ("seconds/step", 2),
    "calls": ("rollout/calls_mean", 3),
}
"""Column -> metric and digits behind the point. Files that are older than a column do without."""
WARM = 50
"""Steps after which seconds are counted, where a run has many."""
FILES = {
    "smollm2-h200": WARM,
    "smollm2-h100": WARM,
    "tool-h100": 5,
    "staleness-h100": 3,
    "objectives-h100": 5,
    "objectives-qwen-h100": 5,
    "agent-laptop": 5,
    "tool-laptop": 5,
    "staleness-laptop": 3,
    "reasoning-gym-laptop": 5,
}
"""The same by file."""
PANELS = (
    ("held_out", "held-out reward"),
    ("length", "tokens of a response"),
    ("entropy", "entropy, nats a token"),
    ("calls", "calls of tools a sample"),
)
"""A column that no run of a file has is left out."""
COLOURS = ("#3d85d8", "#e0752d", "#3fa56b", "#a36bd1", "#888888", "#c94f5e")

Steps = list[dict[str, float]]


def read(name: str) -> dict[str, Steps]:
    """Run -> its rows; what a row lacks is absent."""
    runs: dict[str, Steps] = {}
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            runs.setdefault(row.pop("run"), []).append({key: float(value) for key, value in row.items() if value})
    return runs


def add(run: str, name: str, metrics: Path) -> None:
    """Append the reinforcement-learning rows of a `metrics.jsonl`."""
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    rows = [row for row in rows if row["stage"] == "rl"]
    path = RESULTS / f"{name}.csv"
    had = [column for column, (key, _) in COLUMNS.items() if any(key in row for row in rows)]
    header = ["run", "step", "seconds", *had]
    if path.exists():
        header = path.read_text().partition("\n")[0].split(",")
    else:
        path.write_text(",".join(header) + "\n")
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for row in rows:
            kept = (COLUMNS[column] for column in header[3:])
            values = (f"{row[key]:.{digits}f}" if key in row else "" for key, digits in kept)
            writer.writerow([run, row["step"], f"{row['time'] - rows[0]['time']:.1f}", *values])


def table_row(run: str, steps: Steps, warm: int = WARM) -> str:
    """A run as a row of the page; its columns have their titles there.

    Args:
        warm: steps after which seconds are counted.
    """
    held_out = [row["held_out"] for row in steps if "held_out" in row]
    trained = [row for row in steps if "entropy" in row]
    median = statistics.median(row["step_seconds"] for row in trained if row["step"] > warm and "held_out" not in row)
    first, last = trained[0], trained[-1]
    calls = f" {first['calls']:.2f} to {last['calls']:.2f} |" if "calls" in first else ""
    return (
        f"| {run} | {held_out[0]:.3f} | {max(held_out):.3f} | {held_out[-1]:.3f} | {len(trained)} "
        f"| {steps[-1]['seconds'] / 60:.1f} | {median:.2f} | {first['length']:.0f} to {last['length']:.0f} "
        f"| {first['entropy']:.2f} to {last['entropy']:.2f} |{calls}"
    )


def draw(runs: dict[str, Steps], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    had = {column for steps in runs.values() for row in steps for column in row}
    panels = [(column, title) for column, title in PANELS if column in had]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4 * len(panels), 3.6), layout="constrained")
    for axis, (column, title) in zip(axes, panels, strict=True):
        for colour, (run, steps) in zip(COLOURS, runs.items(), strict=False):
            shown = [(row["step"], row[column]) for row in steps if column in row]
            axis.plot(*zip(*shown, strict=True), color=colour, label=run, marker="." if column == "held_out" else "")
        axis.set(title=title, xlabel="step", ylim=(0, None))
        axis.grid(alpha=0.3)
    axes[0].legend(loc="lower right", fontsize=8)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--add", nargs=3, metavar=("NAME", "FILE", "METRICS"))
    args = parser.parse_args()
    if args.add:
        add(args.add[0], args.add[1], Path(args.add[2]))
    for name, warm in FILES.items():
        runs = read(name)
        draw(runs, IMAGES / f"results-{name}.png")
        print("\n".join(table_row(run, steps, warm) for run, steps in runs.items()))


if __name__ == "__main__":
    main()
