"""`report.html`: a run on one page for whoever was not there, in a file of its own that needs no network.

Plots are drawn by matplotlib, as SVG inside the page. Its size does not grow with the run: a curve has at most
`MAX_POINTS`, each the mean of as many steps as it takes, and texts are cut.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from slime import files
from slime.observe.metrics import HELD_OUT, LOGPROB_DIFF, LOSS, REWARD, Row, read_rows
from slime.observe.samples import Row as Sample
from slime.observe.samples import read_samples
from slime.observe.trackers import shown_config

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS = 400
MAX_CHARACTERS = 2000
"""Of a prompt and of a response."""
SHOWN = 3
"""Samples shown as the best, and as many as the worst."""
PHASES = "seconds/"
NO_PHASES = ("seconds/step", "seconds/eval")
"""The whole, and what is not in every step."""


@dataclass(frozen=True)
class Plot:
    """One diagram: the metrics of a stage by their labels."""

    title: str
    unit: str
    curves: Mapping[str, str]
    stage: str = "rl"
    log: bool = False


PLOTS = (
    Plot("Reward", "mean reward", {"training prompts": REWARD, "held-out prompts": HELD_OUT}),
    Plot("Supervised loss", "nats a token", {"loss": LOSS}, stage="sft"),
    Plot(
        "Response length",
        "tokens",
        {
            "mean": "rollout/response_length_mean",
            "longest": "rollout/response_length_max",
            "held-out, mean": "eval/response_length_mean",
        },
    ),
    Plot(
        "Shares",
        "share",
        {
            "truncated responses": "rollout/truncated_share",
            "groups of equal rewards": "rollout/zero_variance_share",
            "clipped tokens": "train/clip_fraction",
        },
    ),
    Plot("KL divergence from the reference", "nats a token", {"KL": "train/kl"}),
    Plot("Entropy", "nats a token", {"entropy": "train/entropy"}),
    Plot("Gradient norm", "before clipping", {"norm": "train/grad_norm"}),
    Plot(
        "Log-prob gap between engine and trainer",
        "nats a token",
        {"mean": LOGPROB_DIFF, "largest": "train/logprob_diff_max"},
        log=True,
    ),
)

PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ name }}</title><style>
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1150px; margin: 2em auto; padding: 0 1em; color: #222 }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(500px, 1fr)); gap: 1em }
img { width: 100% } pre { background: #f5f5f5; padding: .8em; overflow-x: auto; white-space: pre-wrap }
.samples { display: grid; grid-template-columns: 1fr 1fr; gap: 1em } .verdict { color: #666 }
</style></head><body>
<h1>{{ name }}</h1>
<pre>{{ summary }}</pre>
<div class="plots">
{% for title, source in plots %}<img alt="{{ title }}" src="data:image/svg+xml;base64,{{ source }}">
{% endfor %}</div>
{% for file, columns in samples %}<h2>Samples: {{ file }}</h2>
<div class="samples">{% for heading, rows in columns %}<div><h3>{{ heading }}</h3>
{% for row in rows %}<p class="verdict">reward {{ row.reward }}, {{ row.tokens }} tokens, {{ row.finish }}, \
prompt {{ row.prompt }}</p><pre>{{ row.asked }}</pre><pre>{{ row.response }}</pre>
{% endfor %}</div>{% endfor %}</div>
{% endfor %}<h2>Config</h2>
<details><summary>every key</summary><pre>{{ config }}</pre></details>
</body></html>
"""


def write(folder: Path, summary: str) -> Path:
    """Write `report.html` from what lies in the run directory `folder`; returns its path.

    Raises:
        SlimeError: a line of the metrics or the samples is damaged, or the disk is full.
    """
    from jinja2 import Environment

    rows, page = read_rows(folder / "metrics.jsonl"), folder / "report.html"
    text = Environment(autoescape=True).from_string(PAGE).render(
        name=folder.name,
        summary=summary,
        plots=list(_plots(rows)),
        samples=list(_samples(folder / "samples")),
        config=_config(folder / "config.yaml"),
    )  # fmt: skip
    with files.disk_errors(page):
        files.write_atomic(page, text.encode("utf-8", "backslashreplace"))
    return page


def _plots(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    for plot in PLOTS:
        of_stage = [row for row in rows if row["stage"] == plot.stage]
        curves = {label: curve for label, name in plot.curves.items() if (curve := thinned(of_stage, name))[0]}
        if curves:
            yield plot.title, _svg(plot.title, plot.unit, plot.stage, partial(_lines, curves=curves, log=plot.log))
    steps = [row for row in rows if row["stage"] == "rl" and "seconds/step" in row]
    names = {name for row in steps for name in row if name.startswith(PHASES)} - set(NO_PHASES)
    phases = {name.removeprefix(PHASES): thinned([{name: 0.0, **row} for row in steps], name) for name in sorted(names)}
    if phases:
        yield "Seconds a step", _svg("Seconds a step", "seconds", "rl", partial(_areas, phases=phases))


Curve = tuple[list[int], list[float]]


def thinned(rows: Sequence[Row], name: str) -> Curve:
    """Steps and values of one metric, at most `MAX_POINTS`: means over as many steps as that takes.

    A value that is not finite leaves a gap: its mean is not a number.
    """
    points = [(row["step"], row[name]) for row in rows if name in row]
    width = max(1, math.ceil(len(points) / MAX_POINTS))
    groups = [points[first : first + width] for first in range(0, len(points), width)]
    means = [fmean(value for _, value in group) for group in groups]
    return [group[-1][0] for group in groups], [mean if math.isfinite(mean) else math.nan for mean in means]


def _svg(title: str, unit: str, stage: str, draw: Callable[[Axes], None]) -> str:
    """Base64 of an SVG."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "slime"}):
        figure = Figure(figsize=(6.4, 3.2), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        axes.set_title(title, loc="left", fontweight="bold")
        axes.set(xlabel=f"{'supervised' if stage == 'sft' else 'reinforcement-learning'} step", ylabel=unit)
        axes.locator_params(axis="x", integer=True)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        buffer = io.BytesIO()
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    return base64.b64encode(buffer.getvalue()).decode()


def _lines(axes: Axes, curves: Mapping[str, Curve], log: bool) -> None:
    for label, (steps, values) in curves.items():
        axes.plot(steps, values, linewidth=1.5, marker="o" if len(steps) < 30 else None, markersize=3, label=label)
    if log and any(value > 0 for _, values in curves.values() for value in values):
        axes.set_yscale("log")
    if len(curves) > 1:
        axes.legend(frameon=False, fontsize="small")


def _areas(axes: Axes, phases: Mapping[str, Curve]) -> None:
    ranked = sorted(phases.items(), key=lambda item: -sum(value for value in item[1][1] if math.isfinite(value)))
    steps = ranked[0][1][0]
    axes.stackplot(steps, [values for _, (_, values) in ranked], labels=[name for name, _ in ranked], alpha=0.8)
    axes.legend(frameon=False, fontsize="small", loc="upper left", ncols=2)


def _samples(folder: Path) -> Iterator[tuple[str, list[tuple[str, list[dict[str, Any]]]]]]:
    """The best and the worst of the newest step, and of the newest evaluation."""
    for kind in ("step", "eval"):
        newest = max(folder.glob(f"{kind}-*.jsonl"), default=None)
        rows = [row for row in read_samples(newest) if row["reward"] is not None] if newest else []
        if newest and rows:
            ranked = sorted(rows, key=lambda row: -row["reward"])
            count = min(SHOWN, math.ceil(len(ranked) / 2))
            worst = ranked[count:][-count:][::-1]
            columns = [("best", [_sample(row) for row in ranked[:count]]), ("worst", [_sample(row) for row in worst])]
            yield newest.stem, columns


def _sample(row: Sample) -> dict[str, Any]:
    asked = "\n".join(f"{message['role']}: {message['content']}" for message in row["messages"])
    return {
        "reward": f"{row['reward']:.3f}",
        "tokens": row["num_tokens"],
        "finish": row["finish"],
        "prompt": row["prompt"],
        "asked": _cut(f"{asked}\nlabel: {row['label']}"),
        "response": _cut(row["response"]),
    }


def _cut(text: str) -> str:
    """Begin and end, where a question is asked and an answer stands."""
    half = MAX_CHARACTERS // 2
    return text if len(text) <= MAX_CHARACTERS else f"{text[:half]}\n[...]\n{text[-half:]}"


def _config(path: Path) -> str:
    if not path.exists():
        return ""
    config = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(config, dict)
    return OmegaConf.to_yaml(OmegaConf.create(shown_config({str(name): keys for name, keys in config.items()})))
