"""What a live page needs and no other file of a run has: what the run does now, and its warnings.

`logs/now.json` is one object, replaced while the run lasts: `time` (Unix seconds), `starting` (the last line of the
start, empty after it), `stage`, `total` (steps of the stage), `phase`, and how far it is (`done` of `of`, or null).
`logs/warnings.jsonl` has an object a warning: `time` and `text`. `logs/demonstrations.json` has the first rows that
supervised steps learn from: `where`, `messages` of the prompt, and `answers` by their names.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from slime.config.paths import resolve_rows
from slime.data.prompt_rows import ANSWERS, conversations
from slime.data.rows import Row, first_rows
from slime.errors import SlimeError
from slime.events import Ended, Event, Phase, Ready, StageBegan, StageEnded, Starting, Step
from slime.types import SFT

NOW, WARNINGS, DEMONSTRATIONS = "logs/now.json", "logs/warnings.jsonl", "logs/demonstrations.json"
NUM_ROWS = 4
"""Of demonstrations."""
INTERVAL_S = 0.5
"""How often counts change in the file: thousands of samples finish in a step."""
MAX_WARNINGS = 1000
"""Of a session: what warns at every step would fill the disk."""

LOGGER = logging.getLogger("slime")
"""Not the root: libraries leave that as it is once somebody has set it up."""


class Diary:
    """Writes both files; a subscriber of a run's events.

    Args:
        folder: the run directory.
        rows: where supervised rows lie, as in the config; None: there are none.
        prompt_key: column of the prompt of a row with two answers.
    """

    def __init__(self, folder: Path, rows: str | None = None, prompt_key: str = "prompt") -> None:
        self._folder, self._rows, self._prompt_key = folder, rows, prompt_key
        self._path = folder / NOW
        self._path.parent.mkdir(exist_ok=True)
        self._now: dict[str, Any] = {"starting": "", "stage": "", "total": None, "phase": "", "done": None, "of": None}
        self._written = float("-inf")
        self._warnings = WarningsFile(folder / WARNINGS)
        LOGGER.addHandler(self._warnings)

    def __call__(self, event: Event) -> None:
        match event:
            case Starting():
                self._change(starting=event.what or self._now["starting"])
            case Ready():
                self._change(starting="")
            case StageBegan():
                self._change(stage=event.stage, total=event.total)
                if event.stage == SFT and self._rows:
                    with suppress(SlimeError):  # a page without them is better than one that is told nothing more
                        rows = first_rows(resolve_rows(self._rows), NUM_ROWS)
                        found = [_demonstration(row, self._prompt_key) for row in rows]
                        (self._folder / DEMONSTRATIONS).write_text(json.dumps(found))
            case Phase():
                changes = {"phase": event.name, "done": event.done, "of": event.total}
                self._change(now=event.name != self._now["phase"], **changes)
            case Step() | StageEnded():
                self._change(phase="", done=None, of=None)
            case Ended():
                LOGGER.removeHandler(self._warnings)
                self._path.unlink(missing_ok=True)

    def _change(self, *, now: bool = True, **changes: Any) -> None:
        self._now |= changes
        if now or time.monotonic() - self._written >= INTERVAL_S:
            self._written = time.monotonic()
            aside = self._path.with_name(".now.json.new")
            aside.write_text(json.dumps({"time": time.time(), **self._now}))
            aside.replace(self._path)  # not synced: after a crash nobody asks what ran


def _demonstration(row: Row, prompt_key: str) -> dict[str, Any]:
    pairs = set(ANSWERS) <= row.values.keys()
    found = conversations(row, prompt_key, pairs=pairs)
    answers = {name: messages[-1] for name, messages in zip(ANSWERS if pairs else ("answer",), found, strict=True)}
    return {"where": row.where, "messages": found[0][:-1], "answers": answers}


class WarningsFile(logging.Handler):
    """Appends every warning of slime's in this process to a file, and leaves them where they went without it."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.WARNING)
        self._path, self._num_written = path, 0

    def emit(self, record: logging.LogRecord) -> None:
        if self._num_written < MAX_WARNINGS:
            self._num_written += 1
            line = json.dumps({"time": record.created, "text": record.getMessage()})
            try:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(f"{line}\n")
            except OSError:  # of a full disk: who warned must not fail for it
                self._num_written = MAX_WARNINGS
        if logging.lastResort and self._is_alone(record.name):
            logging.lastResort.handle(record)  # who prints where nobody else handles: now this handler does

    def _is_alone(self, name: str) -> bool:
        logger: logging.Logger | None = logging.getLogger(name)
        while logger:
            if any(handler is not self for handler in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True
