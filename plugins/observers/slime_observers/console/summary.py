"""`summary.txt`: a run on one screen, made from the run directory alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean

from slime import files
from slime.config.hf import read_hf_config, scores
from slime.errors import SlimeError
from slime.observe.metrics import HELD_OUT, LOGPROB_DIFF, LOSS, REWARD, SAVING, STAGES, TOKENS_PER_S, Row, read_rows
from slime.types import RL, SFT
from slime_observers.console.progress import duration

SUMMARY, METRICS = "summary.txt", "metrics.jsonl"
CONTENTS = {
    "report.html": "the run on one page: plots, samples, config",
    "reward.png": "the reward, in training and on held-out prompts",
    METRICS: "every metric of every step, a JSON object a line",
    "samples": "what the model answered: slime samples <this folder>",
    "tensorboard": "the same as TensorBoard events",
    "checkpoints": "to resume from: start the same command again",
    "export": "the final model as a Hugging Face folder",
    "config.yaml": "the resolved configuration",
    "plugins.json": "plugins, installed and used, with their versions",
    "logs": "output of every process",
}
"""Contents of a run directory, in the order in which they are listed, whoever wrote them."""


def write(folder: Path) -> str:
    """Write `summary.txt` into a run directory; returns its text. Raises SlimeError where the disk is full."""
    written = text(read_rows(folder / METRICS), folder)
    with files.disk_errors(folder):
        files.write_atomic(folder / SUMMARY, written.encode())
    return written


def text(rows: Sequence[Row], folder: Path) -> str:
    """The run on one screen: stages, reward before and after, where the time went, what lies where in `folder`."""
    rl = [row for row in rows if row["stage"] == RL]
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
    losses = _values(rows, LOSS) if stage == SFT else []
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
    if difference:
        lines.append(("log-prob gap", f"{fmean(difference):.2g} nats a token, {max(difference):.2g} at most"))
    return [f"{name:<18}{said}" for name, said in lines if said]


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
    """Memory that trainers held at most, beside the planned one, phase by phase; a cpu does not measure it."""
    names = dict.fromkeys(name for row in rows for name in row if name.startswith("memory/"))
    lines = []
    for name in (name for name in names if not name.endswith("_planned_gib")):
        phase, planned = name[len("memory/") : -len("_gib")], _values(rows, name.replace("_gib", "_planned_gib"))
        title = f"{phase.removesuffix('_host')} on the host" if phase.endswith("_host") else phase
        cells = [f"{title:<20}{max(_values(rows, name)):>8.1f}", f"{planned[-1]:>8.1f}" if planned else ""]
        lines.append("  " + "  ".join(cells).rstrip())
    return [f"{'trainers held, GiB':<22}{'at most':>8}  {'planned':>8}", *lines] if lines else []


def _contents(folder: Path) -> list[str]:
    """Contents of the run directory, and how to load the model."""
    there = {name: what for name, what in CONTENTS.items() if _holds_something(folder / name)}
    lines = [str(folder), *(f"  {name:<16}{what}" for name, what in there.items())]
    if "export" not in there:
        return lines
    return [*lines, "", f'load the model:  {_class_of(folder / "export")}.from_pretrained("{folder / "export"}")']


def _class_of(export: Path) -> str:
    with suppress(SlimeError):
        if scores(read_hf_config(str(export))):
            return "AutoModelForSequenceClassification"
    return "AutoModelForCausalLM"


def _holds_something(path: Path) -> bool:
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def _values(rows: Sequence[Row], name: str) -> list[float]:
    return [row[name] for row in rows if name in row]
