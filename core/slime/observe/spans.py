"""Spans of time: what each process of a run did when, for `slime trace`. Nothing is recorded before `record`.

A line of `logs/spans/<process>.jsonl` is a JSON object: `name`, `begin` (Unix seconds), `seconds`, `track` (empty: the
process's own; spans of a track that stands for something else may overlap), and facts. Python's own clock is read, so
that of work on a GPU a span shows when it was asked for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

FOLDER = "spans"
"""In `logs/` of a run directory."""

_files: list[IO[str]] = []


def record(logs: Path, process: str) -> None:
    """Append what this process does from now on, until `stop` or its end."""
    path = logs / FOLDER / f"{process}.jsonl"
    path.parent.mkdir(exist_ok=True)
    _files[:] = [path.open("a", buffering=1, encoding="utf-8")]


def stop() -> None:
    """Record nothing more."""
    while _files:
        _files.pop().close()


@contextmanager
def span(name: str, track: str = "", **facts: Any) -> Iterator[None]:
    """Record the time of the block, also when it raises. Costs nothing where nothing is recorded."""
    if not _files:
        yield
        return
    begin = time.time()
    try:
        yield
    finally:
        line = {"name": name, "begin": begin, "seconds": time.time() - begin, "track": track, **facts}
        for file in _files:
            file.write(json.dumps(line) + "\n")
