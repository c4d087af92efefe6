"""`slime report RUN`: a run on one page, `report.html`, also while the run goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slime.errors import SlimeError
from slime.observe import html
from slime.observe.metrics import read_rows
from slime.observe.report import summary
from slime.tools.arguments import ArgumentParser


def main(argv: Sequence[str]) -> None:
    """Run `slime report <argv>`.

    Raises:
        SlimeError: there is no run, it has no metrics yet, or a line of them is damaged.
    """
    parser = ArgumentParser(
        prog="slime report", description="Write a run's report.html: plots, summary, samples and config on one page."
    )
    parser.add_argument("run", type=Path, help="run directory")
    run = parser.parse_args(argv).run.absolute()
    rows = read_rows(run / "metrics.jsonl")
    if not rows:
        todo = "Name a run directory in which a step has ended."
        raise SlimeError("there are no metrics", where=str(run), todo=todo)
    print(html.write(run, summary(rows, run)))
