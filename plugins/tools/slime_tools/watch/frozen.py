"""`report.html`: the live page of one run or several, frozen into one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import time
from typing import Any

from slime import files
from slime_tools.watch import answers
from slime_tools.watch.page import page
from slime_tools.watch.view import RunView, differences


def write(path: Path, views: Sequence[RunView]) -> None:
    """Write the page of these runs.

    Its size does not grow with the runs: curves have a bounded number of points, texts are cut, and of the samples the
    first and the newest step and evaluation are kept.

    Raises:
        SlimeError: a line of the metrics or the samples is damaged, or the disk is full.
    """
    runs = [_whole(view) for view in views]
    told: dict[str, Any] = {"now": time(), "runs": runs, "differences": differences(views)}
    html, _ = page(" and ".join(view.folder.name for view in views), told)
    with files.disk_errors(path):
        files.write_atomic(path, html.encode("utf-8", "backslashreplace"))


def _whole(view: RunView) -> dict[str, Any]:
    told = view.told({})
    kept = answers.first_and_newest(told["samples"]["names"])
    told["samples"] |= {"names": kept, "files": {name: view.samples(name) for name in kept}}
    return told | {"texts": view.texts()}
