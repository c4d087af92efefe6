"""What an earlier run left in a run directory, and whether the same command has anything to do there."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path

from slime.checkpoints import published
from slime.config.schema import SlimeConfig
from slime.errors import SlimeError

LAST, FIRST = "export", "metrics.jsonl"
"""What a run leaves last, and first."""
_SAVING = b'"seconds/checkpoint"'
"""In rows of metrics behind a save (`slime.observe.metrics.SAVING`)."""


def num_steps(cfg: SlimeConfig) -> int:
    """Steps of all stages, by which checkpoints are numbered."""
    from slime.algo.stages import run_stages

    return sum(stage.num_steps for stage in run_stages(cfg))


def steps_done(path: Path) -> int:
    """Of the newest checkpoint; 0: there is none."""
    return max((checkpoint.step for checkpoint in published(path / "checkpoints")), default=0)


def is_finished(path: Path, total: int, *, exports: bool) -> bool:
    """Whether nothing is left to do: every step is saved, and the model is exported where it is to be.

    Args:
        total: steps of the whole run.
    """
    done, exported = steps_done(path), not exports or (path / LAST).exists()
    return bool(done) and (done > total or (done == total and exported))


def finished(path: Path, total: int) -> str:
    """What is said of a run that `is_finished`."""
    return f"nothing is left to train: {steps_done(path)} of {total} steps are done"


def changes_nothing_but_the_record(path: Path, total: int, changes: Collection[str]) -> SlimeError:
    """What is said of other keys of a run that `is_finished`.

    Args:
        changes: `key: old -> new`.
    """
    what = f"{finished(path, total)}, with other keys ({'; '.join(changes)})"
    todo = "Set another `run.name` for a run with these keys, or raise `run.num_steps` to train on."
    return SlimeError(what, where=str(path), todo=todo)


def require_checkpoint(path: Path, changes: Collection[str]) -> None:
    """Refuse to begin where an earlier run left metrics, which would be overwritten, and no checkpoint to go on from.
    One that ended before it saved anything, and whose keys are the same, begins again: its rows are set aside.

    Raises:
        SlimeError: its checkpoints were removed, or it was another run.
    """
    if steps_done(path) or not (rows := _num_rows(path / FIRST)) or (_never_saved(path) and not changes):
        return
    what = f"an earlier run left {rows} steps of metrics here, and no checkpoint to continue from"
    todo = "Set another `run.name`, or `run.resume=restart`, which moves what is here to a folder beside it."
    raise SlimeError(what, where=str(path), todo=todo)


def _num_rows(metrics: Path) -> int:
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def _never_saved(path: Path) -> bool:
    """By its own record."""
    try:
        state = json.loads((path / "status.json").read_bytes())["state"]
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return False
    return (
        isinstance(state, str)
        and state != "complete"
        and not (path / LAST).exists()
        and _SAVING not in (path / FIRST).read_bytes()
    )


def beside(path: Path) -> Path:
    """The first free name for what is moved away: `<name>.1`, `<name>.2`, ..."""
    number = 1
    while os.path.lexists(free := path.with_name(f"{path.name}.{number}")):
        number += 1
    return free
