"""Run directories in a folder."""

from __future__ import annotations

from pathlib import Path

from slime.observe import status as statuses
from slime.observe.status import STATUS
from slime.run_dir import CONFIG

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
