"""`slime runs [FOLDER]`: the runs of a folder, the newest first."""

from __future__ import annotations

import json
import math
import os
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from slime import files
from slime.arguments import ArgumentParser
from slime.errors import SlimeError
from slime.observe import status as statuses
from slime.observe.metrics import Row
from slime.observe.status import STATUS
from slime.printable import printable
from slime.run_dir import CONFIG
from slime_tools.watch import facts
from slime_tools.watch.progress import RESULTS

RUNS = "runs"
"""Where runs lie unless `run.dir` says otherwise."""
DEPTH = 3
"""Of folders in which runs are looked for: names of runs may have a slash."""


def is_run(folder: Path) -> bool:
    """Whether a run, or what is left of one, lies in `folder`."""
    return any((folder / name).is_file() for name in (STATUS, CONFIG, "metrics.jsonl"))


def find(folder: Path) -> list[Path]:
    """The runs in `folder`, or itself if it is one; the one that started last comes first."""
    return sorted(_below(folder, DEPTH), key=lambda run: -started(run))


def started(run: Path) -> float:
    """Unix seconds: of the first session, or as early as is known."""
    known = [path.stat().st_mtime for name in (CONFIG, "metrics.jsonl") if (path := run / name).is_file()]
    return statuses.read(run).started or min(known, default=0.0)


def _below(folder: Path, depth: int) -> list[Path]:
    if is_run(folder):
        return [folder]
    inside = [each for each in folder.iterdir() if each.is_dir() and not each.is_symlink()] if folder.is_dir() else []
    return [run for each in inside for run in _below(each, depth - 1)] if depth else []


NARROW = 76
"""Characters of a terminal, below which a run takes two lines."""
BLOCK = 2**18
"""Bytes of a file that are read at a time, from its end."""
TITLES = ("state", "step", "result", "age", "size")


@dataclass(frozen=True)
class Listed:
    """A run, as the list has it.

    Attributes:
        name: its path below the folder that was listed.
        state: `running`, `finished`, `failed`, `interrupted`, `killed` or `not known`.
        stage, step, total: how far it is; `total` is None where the config does not say it.
        result: the newest value of `measure`: the held-out reward, else that of training, else the loss.
        started: Unix seconds.
        size: bytes of all files.
    """

    name: str
    path: str
    state: str
    stage: str | None
    step: int | None
    total: int | None
    measure: str | None
    result: float | None
    started: float
    size: int


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = "List the runs of a folder, the newest first: state, step, result, age and size."
    parser.add_argument("folder", type=Path, nargs="?", default=Path(RUNS), help=f"(default: {RUNS})")
    parser.add_argument("--json", action="store_true", help="for programs: an array with an object a run")


def run(args: Namespace) -> None:
    """Raises SlimeError: the folder has no run."""
    folder = args.folder.absolute()
    runs = [listed(path, folder) for path in find(folder)]
    if args.json:
        print(json.dumps([asdict(each) for each in runs], indent=1))
        return
    if not runs:
        raise SlimeError("there are no runs", where=str(folder), todo="Name the folder that run.dir named.")
    show(runs, Console(highlight=False), time.time())


def listed(path: Path, folder: Path) -> Listed:
    head = brief(path)
    measure, points = next(iter(head["results"].items()), (None, None))
    return Listed(
        name=name_below(path, folder),
        path=str(path),
        state=head["state"],
        stage=head["stage"],
        step=head["step"],
        total=head["total"],
        measure=measure,
        result=points[-1][1] if points and math.isfinite(points[-1][1]) else None,
        started=head["started"],
        size=sum(file.lstat().st_size for file in files.files_under(path)),
    )


def name_below(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path != folder and path.is_relative_to(folder) else path.name


def brief(path: Path) -> dict[str, Any]:
    """How a run stands, of the names that the page's head has, without reading all of its metrics. `results` has the
    newest point of each measure that it has, the most telling one first."""
    row: Row = {}
    missing, newest = dict(RESULTS), dict[str, list[tuple[int, float]]]()
    for line in _lines_from_the_end(path / "metrics.jsonl"):
        if next(iter(RESULTS)) not in missing:
            break
        if not row or any(f'"{name}"'.encode() in line for name in missing.values()):
            with suppress(
                ValueError, RecursionError
            ):  # what is no row is left to `slime watch`, which says where it is
                found = json.loads(line)
                row = row or found
                for measure in [each for each, name in missing.items() if name in found]:
                    newest[measure] = [(found["step"], float(found[missing.pop(measure)]))]
    config, stage = facts.read_config(path), row.get("stage")
    total = facts.num_steps(config, stage) if stage else None
    results = {measure: newest[measure] for measure in RESULTS if measure in newest}
    state = facts.state_of(path) | {"started": started(path), "time": row.get("time", 0.0)}
    return state | {"stage": stage, "step": row.get("step"), "total": total, "results": results}


def _lines_from_the_end(path: Path) -> Iterator[bytes]:
    """Read as far as they are taken; none if there is no file."""
    with path.open("rb") if path.exists() else BytesIO() as file:
        left, rest = file.seek(0, os.SEEK_END), b""
        while left:
            size = min(BLOCK, left)
            left -= size
            file.seek(left)
            first, *lines = (file.read(size) + rest).split(b"\n")
            yield from reversed(lines)
            rest = first
        yield rest


def show(runs: Sequence[Listed], console: Console, now: float) -> None:
    """A table, or two lines a run where the terminal is narrow."""
    rows = [(each.name, each.state, *_cells(each, now)) for each in runs]
    if console.width < NARROW:
        for name, *cells in rows:
            console.print(Text(printable(name), style="bold"), soft_wrap=True)
            console.print(Text("  " + "  ".join(cell for cell in cells if cell != "-")), soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("run", overflow="fold")
    for title in TITLES:
        table.add_column(title, no_wrap=True, justify="right" if title in ("age", "size") else "left")
    for name, *cells in rows:
        table.add_row(Text(printable(name)), *cells)
    console.print(table)


def _cells(listed: Listed, now: float) -> tuple[str, ...]:
    step = (
        "-" if listed.step is None else f"{listed.stage} {listed.step}" + (f"/{listed.total}" if listed.total else "")
    )
    result = "-" if listed.result is None else f"{(listed.measure or '').replace('_', '-')} {listed.result:.3f}"
    return step, result, age(now - listed.started) if listed.started else "-", files.human_bytes(listed.size)


def age(seconds: float) -> str:
    """For people: `42 s`, `12 min`, `3 h`, `2 d`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size or (unit != "min" and seconds >= size):
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
