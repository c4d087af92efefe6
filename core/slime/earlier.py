"""An earlier run in a run directory, and whether the same command has anything to do there."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path

from slime.checkpoints import published
from slime.config.schema import SlimeConfig
from slime.errors import SlimeError

LAST, FIRST = "export", "metrics.jsonl"
"""The last and the first that a run leaves."""
_SAVING = b'"seconds/checkpoint"'
"""In rows of metrics after a save (`slime.observe.metrics.SAVING`)."""


def steps_done(path: Path) -> int:
    """The step of the newest checkpoint; 0: there is none."""
    return max((checkpoint.step for checkpoint in published(path / "checkpoints")), default=0)


def finished(path: Path, cfg: SlimeConfig) -> str:
    """A sentence if every step is saved, and the model exported where it is to be; else empty."""
    from slime.algo.stages import run_stages

    done, total = steps_done(path), sum(stage.num_steps for stage in run_stages(cfg))
    if not done or done < total or (done == total and cfg.train.checkpoint.export_hf and not (path / LAST).exists()):
        return ""
    return f"nothing is left to train: {done} of {total} steps are done"


def require_checkpoint(path: Path, changes: Collection[str]) -> None:
    """Refuse to begin where an earlier run left metrics, which would be overwritten, and no checkpoint to go on from.
    One that ended before it saved anything, and whose keys are the same, begins again: its rows are set aside. Raises
    SlimeError if its checkpoints were removed, or it was another run."""
    metrics = (path / FIRST).read_bytes() if (path / FIRST).exists() else b""
    if steps_done(path) or not (rows := metrics.count(b"\n")) or (_never_saved(path, metrics) and not changes):
        return
    what = f"an earlier run left {rows} steps of metrics here, and no checkpoint to continue from"
    todo = "Set another `run.name`, or `run.resume=restart`, which moves what is here to a folder beside it."
    raise SlimeError(what, where=str(path), todo=todo)


def _never_saved(path: Path, metrics: bytes) -> bool:
    try:
        state = json.loads((path / "status.json").read_bytes())["state"]
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return False
    ended_early = isinstance(state, str) and state != "complete" and not (path / LAST).exists()
    return ended_early and _SAVING not in metrics


def beside(path: Path) -> Path:
    """The first free name for what is moved away: `<name>.1`, `<name>.2`, ..."""
    number = 1
    while os.path.lexists(free := path.with_name(f"{path.name}.{number}")):
        number += 1
    return free
