"""`slime report RUN...`: runs on one page, `report.html`, also while they go on."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from slime.arguments import ArgumentParser
from slime.errors import SlimeError
from slime.observe.metrics import read_rows
from slime.printable import printable
from slime_tools.watch import REPORT


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
    from slime_tools.watch import frozen
    from slime_tools.watch.view import RunView

    folders = [folder.absolute() for folder in args.runs]
    for folder in folders:
        if not read_rows(folder / "metrics.jsonl"):
            todo = "Name a run directory in which a step has ended."
            raise SlimeError("there are no metrics", where=str(folder), todo=todo)
    if len(folders) > 1 and args.output is None:
        what = "a page of several runs lies in none of them"
        raise SlimeError(what, where="slime report", todo="Name the file: --output FILE.")
    path = args.output.absolute() if args.output else folders[0] / REPORT
    frozen.write(path, [RunView(folder) for folder in folders])
    print(printable(str(path)))
