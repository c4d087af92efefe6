"""What stays after a run: a one-screen summary, the reward plot and the page, made from the run directory alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from slime import files
from slime.observe import html
from slime.observe.metrics import HELD_OUT, LOGPROB_DIFF, LOSS, REWARD, SAVING, STAGES, TOKENS_PER_S, Row, read_rows
from slime.observe.progress import duration
from slime.run_dir import RunDir

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CONTENTS = {
    "report.html": "the run on one page: plots, samples, config",
    "reward.png": "the reward, in training and on held-out prompts",
    "metrics.jsonl": "every metric of every step, a JSON object a line",
    "samples": "what the model answered: slime samples <this folder>",
    "tensorboard": "the same as TensorBoard events",
    "checkpoints": "to resume from: start the same command again",
    "export": "the final model as a Hugging Face folder",
    "config.yaml": "the resolved configuration",
    "plugins.json": "plugins, installed and used, with their versions",
    "logs": "output of every process",
}


def write(run: RunDir) -> str:
    """Write `summary.txt`, `report.html` and, if there are rewards, `reward.png`; returns the summary.

    Raises:
        SlimeError: the disk is full, or this is no longer the directory that the run opened.
    """
    run.require_intact()
    rows = read_rows(run.metrics)
    with files.disk_errors(run.path):
        if _values(rows, REWARD) or _values(rows, HELD_OUT):
            plot_rewards(rows, run.reward_plot, title=run.path.name)
        html.write(run.path, summary(rows, run.path))
        text = summary(rows, run.path)
        files.write_atomic(run.summary, text.encode())
    return text


def summary(rows: Sequence[Row], folder: Path) -> str:
    """The run on one screen: stages, reward before and after, where the time went, what lies where in `folder`."""
    rl = [row for row in rows if row["stage"] == "rl"]
    parts = (
        [folder.name, "=" * len(folder.name)],
        [_stage(stage, [row for row in rows if row["stage"] == stage]) for stage in STAGES if _ran(stage, rows)],
        _outcome(rows),
        _time_split(rl),
        _memory(rows),
        _contents(folder),
    )
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _ran(stage: str, rows: Sequence[Row]) -> bool:
    return any(row["stage"] == stage for row in rows)


def _stage(stage: str, rows: Sequence[Row]) -> str:
    """One line on a stage: steps, their wall time, speed; of the supervised stage also the loss, its outcome."""
    losses = _values(rows, LOSS) if stage == "sft" else []
    seconds, speed = _values(rows, "seconds/step"), _values(rows, TOKENS_PER_S)
    parts = [f"{stage:<4}{max(row['step'] for row in rows):>6} steps"]
    parts += [f"in {duration(sum(seconds))}"] if seconds else []
    parts += [f"{fmean(speed):,.0f} tokens/s"] if speed else []
    parts += [f"loss {losses[0]:.4f} -> {losses[-1]:.4f}"] if losses else []
    return "   ".join(parts)


def _outcome(rows: Sequence[Row]) -> list[str]:
    """Reward first and last, and how far apart engine and trainer are on the same tokens."""
    held_out, reward = _values(rows, HELD_OUT), _values(rows, REWARD)
    difference = _values(rows, LOGPROB_DIFF)
    lines = [("held-out reward", _before_after(held_out)), ("training reward", _before_after(reward))]
    lines += (
        [("log-prob gap", f"{fmean(difference):.2g} nats a token, {max(difference):.2g} at most")] if difference else []
    )
    return [f"{name:<18}{text}" for name, text in lines if text]


def _before_after(values: Sequence[float]) -> str:
    return f"{values[0]:.3f} -> {values[-1]:.3f}   ({values[-1] - values[0]:+.3f})" if values else ""


def _time_split(rows: Sequence[Row]) -> list[str]:
    """Where the wall time of the reinforcement-learning steps went, as a table with bars."""
    rows = [row for row in rows if "seconds/step" in row]  # the evaluation before the first step belongs to none
    total = sum(_values(rows, "seconds/step")) + sum(_values(rows, SAVING))
    names = dict.fromkeys(name for row in rows for name in row if name.startswith("seconds/"))
    spent = {name.removeprefix("seconds/"): sum(_values(rows, name)) for name in names if name != "seconds/step"}
    if not total:
        return []
    steps = len(rows)
    return [f"a step took {total / steps:.2f} s, of which"] + [
        f"  {name:<12}{seconds / steps:>8.2f} s{seconds / total:>6.0%}  {'#' * round(40 * seconds / total)}".rstrip()
        for name, seconds in sorted(spent.items(), key=lambda item: (item[0] == "other", -item[1]))
    ]


def _memory(rows: Sequence[Row]) -> list[str]:
    """What trainers held at most beside what was planned, phase by phase; nothing on cpu, which does not measure it."""
    names = dict.fromkeys(name for row in rows for name in row if name.startswith("memory/"))
    lines = []
    for name in (name for name in names if not name.endswith("_planned_gib")):
        phase, planned = name[len("memory/") : -len("_gib")], _values(rows, name.replace("_gib", "_planned_gib"))
        title = f"{phase.removesuffix('_host')} on the host" if phase.endswith("_host") else phase
        cells = [f"{title:<20}{max(_values(rows, name)):>8.1f}", f"{planned[-1]:>8.1f}" if planned else ""]
        lines.append("  " + "  ".join(cells).rstrip())
    return [f"{'trainers held, GiB':<22}{'at most':>8}  {'planned':>8}", *lines] if lines else []


def _contents(folder: Path) -> list[str]:
    """What lies in the run directory, and how to load the model."""
    there = {name: text for name, text in CONTENTS.items() if _holds_something(folder / name)}
    lines = [str(folder), *(f"  {name:<16}{text}" for name, text in there.items())]
    load = f'AutoModelForCausalLM.from_pretrained("{folder / "export"}")'
    return [*lines, "", f"load the model:  {load}"] if "export" in there else lines


def _holds_something(path: Path) -> bool:
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def _values(rows: Sequence[Row], name: str) -> list[float]:
    return [row[name] for row in rows if name in row]


def plot_rewards(rows: Sequence[Row], path: Path, title: str = "") -> None:
    """Draw training reward (every step, and its running mean) and held-out reward over the rl steps as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    _draw(axes, rows)
    axes.set(xlabel="reinforcement-learning step", ylabel="mean reward")
    axes.set_title(title, loc="left", fontweight="bold")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
    FigureCanvasAgg(figure).print_png(path)


def _draw(axes: Axes, rows: Sequence[Row]) -> None:
    steps, rewards = _curve(rows, REWARD)
    axes.plot(steps, rewards, color="#9ecae1", linewidth=1, label="training prompts, each step")
    axes.plot(steps, _running_mean(rewards), color="#2171b5", linewidth=2, label="training prompts, running mean")
    axes.plot(*_curve(rows, HELD_OUT), color="#e6550d", linewidth=2, marker="o", label="held-out prompts")


def _curve(rows: Sequence[Row], name: str) -> tuple[list[int], list[float]]:
    points = [(row["step"], row[name]) for row in rows if row["stage"] == "rl" and name in row]
    return [step for step, _ in points], [value for _, value in points]


def _running_mean(values: Sequence[float], window: int = 5) -> list[float]:
    """Mean over each value and up to `window` - 1 before it."""
    return [fmean(values[max(0, end - window) : end]) for end in range(1, len(values) + 1)]
