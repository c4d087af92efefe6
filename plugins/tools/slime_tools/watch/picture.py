"""`reward.png`: the reward of a run as a picture, drawn by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from slime import files
from slime.observe.metrics import HELD_OUT, REWARD, Row, read_rows
from slime.types import RL

MAX_POINTS = 400
SIZE, DPI = (8.0, 4.5), 150
"""Inches, and dots an inch."""
AVERAGED = 5
"""Steps of the running mean."""
EACH_STEP, RUNNING_MEAN = "training prompts, each step", "training prompts, running mean"
LOOKS = {EACH_STEP: ("#9ecae1", 1, ""), RUNNING_MEAN: ("#2171b5", 2, "")}
"""Colour, width and marker of a curve."""
HELD_OUT_LOOK = ("#e6550d", 2, "o")

Points = Sequence[tuple[int, float]]
"""(step, value)"""
Curve = tuple[list[int], list[float]]


def write(folder: Path) -> None:
    """Write `reward.png` into the run directory `folder`, if the run has rewards.

    Raises:
        SlimeError: a line of the metrics is damaged, or the disk is full.
    """
    curves = reward_curves(read_rows(folder / "metrics.jsonl"))
    if curves:
        with files.disk_errors(folder):
            _draw(folder.name, curves, folder / "reward.png")


def reward_curves(rows: Sequence[Row]) -> dict[str, Curve]:
    """The reward of the reinforcement-learning steps by label: each step, its running mean, and held-out prompts."""
    steps, held_out = ([row for row in rows if row["stage"] == RL and name in row] for name in (REWARD, HELD_OUT))
    rewards, scores = [(row["step"], row[REWARD]) for row in steps], [(row["step"], row[HELD_OUT]) for row in held_out]
    lines = {EACH_STEP: rewards, RUNNING_MEAN: running_mean(rewards), "held-out prompts": scores}
    return {label: thinned(points) for label, points in lines.items() if points}


def running_mean(points: Points) -> Points:
    """Mean over each value and up to `AVERAGED` - 1 before it."""
    values = [value for _, value in points]
    return [(step, fmean(values[max(0, end - AVERAGED) : end])) for end, (step, _) in enumerate(points, start=1)]


def thinned(points: Points) -> Curve:
    """Steps and values of one metric, at most `MAX_POINTS`: means over as many steps as that takes.

    A value that is not finite leaves a gap: its mean is not a number.
    """
    width = max(1, math.ceil(len(points) / MAX_POINTS))
    groups = [points[first : first + width] for first in range(0, len(points), width)]
    means = [fmean(value for _, value in group) for group in groups]
    return [group[-1][0] for group in groups], [mean if math.isfinite(mean) else math.nan for mean in means]


def _draw(title: str, curves: Mapping[str, Curve], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    for label, curve in curves.items():
        colour, width, marker = LOOKS.get(label, HELD_OUT_LOOK)
        axes.plot(*curve, color=colour, linewidth=width, marker=marker, markersize=4, label=label)
    axes.legend(frameon=False, fontsize="small", loc="best")
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set(xlabel="reinforcement-learning step", ylabel="mean reward")
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    FigureCanvasAgg(figure).print_png(path)
