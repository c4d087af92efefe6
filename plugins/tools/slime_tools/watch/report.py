"""`slime report RUN...`: runs on one page, `report.html`, also while they go on; a run writes one at its end."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from time import time
from typing import Any

from slime import files
from slime.arguments import ArgumentParser
from slime.errors import SlimeError
from slime.events import Complete, Event
from slime.observe.metrics import read_rows
from slime.printable import printable
from slime.types import TrackedRun
from slime_tools.watch import answers, facts, picture
from slime_tools.watch.diary import Diary
from slime_tools.watch.page import page
from slime_tools.watch.view import RunView, differences

REPORT = "report.html"
MAX_POINTS = 300
"""Of a curve of one run; fewer of several."""


class Watch:
    """Keeps what the live page needs, and writes `report.html` and `reward.png` once the last step of a run is done."""

    def __init__(self, run: TrackedRun) -> None:
        prompt_key = facts.of(run.config, "data.prompt_key") or "prompt"
        self._folder, self._diary = run.folder, Diary(run.folder, facts.of(run.config, "sft.path"), prompt_key)

    def __call__(self, event: Event) -> None:
        self._diary(event)
        if isinstance(event, Complete):
            picture.write(self._folder)
            write(self._folder / REPORT, [RunView(self._folder, "finished")])


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = (
        "Write runs on one page: how they stand, plots, samples and config, in a file without requests."
    )
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="run", help="run directory; several are laid over each other"
    )
    parser.add_argument("--output", type=Path, help=f"the file (default: {REPORT} in the run directory)")


def run(args: Namespace) -> None:
    """Raises SlimeError: a run has no metrics yet, a line of them is damaged, or the disk is full."""
    folders = [folder.absolute() for folder in args.runs]
    for folder in folders:
        if not read_rows(folder / "metrics.jsonl"):
            todo = "Name a run directory in which a step has ended."
            raise SlimeError("there are no metrics", where=str(folder), todo=todo)
    if len(folders) > 1 and args.output is None:
        what = "a page of several runs lies in none of them"
        raise SlimeError(what, where="slime report", todo="Name the file: --output FILE.")
    path = args.output.absolute() if args.output else folders[0] / REPORT
    write(path, [RunView(folder) for folder in folders])
    print(printable(str(path)))


def write(path: Path, views: Sequence[RunView]) -> None:
    """Write the page of these runs.

    Its size does not grow with the runs: curves have a bounded number of points, texts are cut, and of the samples the
    first and the newest step and evaluation are kept.

    Raises:
        SlimeError: a line of the metrics or the samples is damaged, or the disk is full.
    """
    runs = [_whole(view, max(50, 2 * MAX_POINTS // (1 + len(views)))) for view in views]
    told: dict[str, Any] = {"now": time(), "runs": runs, "differences": differences(views)}
    html, _ = page(" and ".join(view.folder.name for view in views), told)
    with files.disk_errors(path):
        files.write_atomic(path, html.encode("utf-8", "backslashreplace"))


def _whole(view: RunView, max_points: int) -> dict[str, Any]:
    told = view.told({}, max_points)
    kept = answers.first_and_newest(told["samples"]["names"])
    told["samples"] |= {"names": kept, "files": {name: view.samples(name) for name in kept}}
    return told | {"texts": view.texts()}
