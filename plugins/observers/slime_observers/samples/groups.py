"""`replay/`: the groups that each step trained on, whole, so that `slime replay` can train on them again."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Sequence
from pathlib import Path

from slime import files
from slime.errors import SlimeError
from slime.events import Event, Samples
from slime.types import Group, TrackedRun

FOLDER = "replay"
MB = 10**6
TOKEN_BYTES = 8
"""Of a token with log-prob and mask, compressed; measured 5 to 8."""
MAX_FILES = 2000
"""However small they are: a folder of all steps of a long run would be slow to list, and take an inode each."""

log = logging.getLogger(__name__)


def of_run(run: TrackedRun) -> GroupLog:
    """What `slime replay` reads, as far as `observe.replay_mb` wants it."""
    return GroupLog(run.folder, run.config.get("observe", {}).get("replay_mb", 0.0))


class GroupLog:
    """Writes `step-<step>.json.gz` for each step of one run, as a subscriber of its events.

    Args:
        run: the run directory.
        limit_mb: megabytes (10^6 bytes) of all files, of which the newest stay, `MAX_FILES` at most. A step that is
            larger is not written.
    """

    def __init__(self, run: Path, limit_mb: float) -> None:
        self._run, self._limit, self._has_warned = run, limit_mb * MB, False
        self._sizes = {step: path_of(run, step).stat().st_size for step in recorded_steps(run)}

    def __call__(self, event: Event) -> None:
        """Raises SlimeError where the disk is full."""
        if isinstance(event, Samples) and self._limit:
            self._write(event.step, event.groups)

    def _write(self, step: int, groups: Sequence[Group]) -> None:
        from slime import driver_state  # imports numpy, which `slime plan` does without
        from slime.sampling.buffer import state_of

        path = path_of(self._run, step)
        path.unlink(missing_ok=True)  # of a step that runs again
        self._sizes.pop(step, None)
        if (size := sum(map(_size, groups))) <= self._limit:
            with files.disk_errors(path):
                path.parent.mkdir(exist_ok=True)
                state = driver_state.dumps({"groups": [state_of(group) for group in groups]})
                files.write_atomic(path, gzip.compress(state, compresslevel=1, mtime=0))
                self._sizes[step] = path.stat().st_size
        elif not self._has_warned:
            self._has_warned = True
            what = "step %d is not kept for `slime replay`: about %.0f MB, more than observe.replay_mb"
            log.warning(what, step, size / MB)
        while len(self._sizes) > MAX_FILES or sum(self._sizes.values()) > self._limit:
            path_of(self._run, oldest := min(self._sizes)).unlink(missing_ok=True)
            del self._sizes[oldest]


def _size(group: Group) -> int:
    """About how many bytes it takes, found without encoding it."""
    segments = [segment for sample in group.samples for segment in sample.segments]
    rows = sum(len(recorded.data) for segment in segments for recorded in segment.recorded.values())
    return rows + TOKEN_BYTES * sum(len(segment.context) + len(segment.tokens) for segment in segments)


def path_of(run: Path, step: int) -> Path:
    return run / FOLDER / f"step-{step:06d}.json.gz"


def recorded_steps(run: Path) -> list[int]:
    """The steps of a run directory whose groups are there, in their order."""
    return sorted(int(path.name[5:-8]) for path in (run / FOLDER).glob("step-*.json.gz"))


def read_groups(run: Path, step: int) -> list[Group]:
    """What a step trained on. Raises SlimeError if the file is not what was written."""
    from slime import driver_state
    from slime.sampling.buffer import group_of

    path = path_of(run, step)
    try:
        return [group_of(values) for values in driver_state.loads(gzip.decompress(path.read_bytes()))["groups"]]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        todo = "Copy it again, or replay another step."
        raise SlimeError(f"it is not what a run wrote ({error})", where=str(path), todo=todo) from error
