"""`slime samples RUN`: what the model answered, the best and the worst response to a prompt side by side."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from slime.arguments import ArgumentParser
from slime.contracts import SampleRow
from slime.errors import SlimeError
from slime.printable import printable
from slime_observers.samples.rows import Row, best_and_worst, read_samples, said_of, spoken


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = "Show the best and the worst response to a prompt, side by side."
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument(
        "which", nargs="?", help="step-000012, eval-000012, or a number for that step (default: newest step)"
    )
    parser.add_argument("--prompts", type=int, default=5, help="how many prompts, those that differ most first")


def run(args: Namespace) -> None:
    """Raises SlimeError: the run has no samples, or not those."""
    path = _file(args.run / "samples", args.which)
    show(read_samples(path), path.stem, args.prompts, Console(highlight=False))


def _file(folder: Path, which: str | None) -> Path:
    names = sorted(path.stem for path in folder.glob("*.jsonl"))
    if not names:
        todo = "Name a run directory of a run with observe.samples_mb above 0 that has finished a step."
        raise SlimeError("there are no samples", where=str(folder), todo=todo)
    if which is None:
        wanted = max(names, key=lambda name: (name.startswith("step"), name))
    else:
        wanted = f"step-{int(which):06d}" if which.isdecimal() else which
    if wanted not in names:
        raise SlimeError(f"there is no '{wanted}'", where=str(folder), todo=f"The newest is '{names[-1]}'.")
    return folder / f"{wanted}.jsonl"


def show(rows: Sequence[Row], title: str, num_prompts: int, console: Console) -> None:
    """Print the prompts whose rewards differ most, each with its best and its worst response."""
    chosen = best_and_worst(rows, num_prompts)
    num_all = len({row["prompt"] for row in rows})
    console.print(_text(f"{title}: {len(rows)} samples of {num_all} prompts; {len(chosen)} shown"))
    for pair in chosen:
        console.print(_shown(pair))


def _shown(pair: Sequence[SampleRow]) -> Panel:
    head = Table.grid(padding=(0, 2))
    for message in pair[0]["messages"]:
        head.add_row(_text(message["role"], "bold"), _text(message["content"]))
    head.add_row(_text("label", "bold"), _text(pair[0].get("label")))
    table = Table(expand=True)
    for row in pair:
        table.add_column(_text(said_of(row)), ratio=1)
    table.add_row(*(_text(spoken(row)) for row in pair))
    outer = Table.grid(expand=True)
    outer.add_row(head)
    outer.add_row(table)
    said = pair[0].get("filter")
    return Panel(outer, title=_text(f"prompt {pair[0]['prompt']}" + (f", {said}" if said else "")), title_align="left")


def _text(value: object, style: str = "") -> Text:
    return Text(printable(value if isinstance(value, str) else repr(value)), style=style)
