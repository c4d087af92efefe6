"""The checkpoint store: written aside, synced, then published by a manifest and one rename.

    checkpoints/step-000010/manifest.json     written last: step, slime version, every file with size and digest
                            driver.pkl        the driver's state: prompt position, buffer, versions
                            ...               what the trainer ranks wrote
    checkpoints/.step-000020.partial          a save under way, or one that died; the next save removes it

At any instant every `step-*` folder is whole, so a kill at any point leaves the last good checkpoint usable.
On several nodes the folder lies on a shared file system whose files are visible to all once their writer closed them.
"""

from __future__ import annotations

import json
import logging
import pickle
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import slime
from slime import files
from slime.errors import SlimeError

MANIFEST, DRIVER = "manifest.json", "driver.pkl"
DIGEST_LIMIT = 64 * 2**20
"""Files above this many bytes are checked by size alone: reading terabytes back would double the cost of a save."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """One published checkpoint: its step and its folder."""

    step: int
    path: Path

    def driver_state(self) -> dict[str, Any]:
        """What the driver handed to `commit`."""
        state = pickle.loads((self.path / DRIVER).read_bytes())
        assert isinstance(state, dict)
        return state

    @property
    def num_bytes(self) -> int:
        """Size of all its files."""
        return sum(path.stat().st_size for path in files.files_under(self.path))

    def problem(self) -> str:
        """What is wrong with the files, naming the first bad one; empty if they are what was saved."""
        try:
            manifest = json.loads((self.path / MANIFEST).read_bytes())
        except FileNotFoundError:
            return f"{MANIFEST} is missing"
        except ValueError:
            return f"{MANIFEST} is not JSON"
        problems = (_file_problem(self.path / name, facts) for name, facts in manifest["files"].items())
        return next((problem for problem in problems if problem), "")


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: the run directory's `checkpoints/`.
        keep: how many published checkpoints stay; older ones are removed after each save.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        if keep < 1:
            raise SlimeError(f"cannot keep {keep} checkpoints", where="train.checkpoint.keep", todo="Set 1 or more.")
        self._folder, self._keep = folder, keep

    def all(self) -> list[Checkpoint]:
        """Every published checkpoint, oldest first, whether its files are still good or not."""
        found = (Checkpoint(int(path.name.removeprefix("step-")), path) for path in self._folder.glob("step-*[0-9]"))
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint whose files are what was saved; None if nothing was ever published.

        A damaged one is skipped with a warning that names the file: going on from an older step beats stopping, and
        going on from a damaged one would be silent corruption.

        Raises:
            SlimeError: every checkpoint is damaged; starting over is for the user to decide.
        """
        problem = ""
        for checkpoint in reversed(self.all()):
            problem = checkpoint.problem()
            if not problem:
                return checkpoint
            log.warning("skipping damaged checkpoint %s: %s", checkpoint.path, problem)
        if problem:
            todo = "Bring the file back, or remove the folder to start over."
            raise SlimeError(f"every checkpoint is damaged ({problem})", where=str(self._folder), todo=todo)
        return None

    @contextmanager
    def saving(self, step: int, driver_state: Mapping[str, Any]) -> Iterator[Path]:
        """`begin` and `commit` around the block, in which the trainers write into the folder it yields.

        If anything fails the partial folder is removed, so that a full disk has room again for logs and metrics.

        Raises:
            SlimeError: the disk is full; earlier checkpoints are untouched.
        """
        staging = self.begin(step)
        done = False
        try:
            with files.disk_errors(self._path(step), self._expected_bytes()):
                yield staging
            self.commit(step, driver_state)
            done = True
        finally:
            if not done:
                shutil.rmtree(staging, ignore_errors=True)

    def begin(self, step: int) -> Path:
        """An empty folder to write the checkpoint of `step` into; whatever died half-way before is removed.

        Raises:
            SlimeError: the disk has less room than the last checkpoint took.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._clean(step)
        if (needed := self._expected_bytes()) > files.free_bytes(self._folder):
            raise files.disk_full(self._path(step), needed)
        staging = self._staging(step)
        with files.disk_errors(self._path(step)):
            staging.mkdir()
        return staging

    def commit(self, step: int, driver_state: Mapping[str, Any]) -> Checkpoint:
        """Publish what was written into the folder of `begin`, with the driver's (picklable) state.

        Raises:
            SlimeError: the disk is full; earlier checkpoints are untouched.
        """
        staging, path = self._staging(step), self._path(step)
        with files.disk_errors(path, self._expected_bytes()):
            (staging / DRIVER).write_bytes(pickle.dumps(dict(driver_state)))
            manifest = _manifest(staging, step)
            files.sync_tree(staging)
            files.write_atomic(staging / MANIFEST, json.dumps(manifest, indent=1).encode())
            staging.rename(path)
            files.sync(self._folder)
        self._prune()
        return Checkpoint(step, path)

    def _clean(self, step: int) -> None:
        for leftover in self._folder.glob(".step-*"):
            shutil.rmtree(leftover)
        if (path := self._path(step)).exists():
            assert Checkpoint(step, path).problem(), f"step {step} is already saved"
            path.rename(path.with_name(f"damaged-{path.name}-{time.time_ns()}"))

    def _prune(self) -> None:
        for checkpoint in self.all()[: -self._keep]:
            # Renamed first: a kill while files vanish must not leave something that looks like a checkpoint.
            shutil.rmtree(checkpoint.path.rename(self._folder / f".{checkpoint.path.name}.old"))

    def _expected_bytes(self) -> int:
        return max((checkpoint.num_bytes for checkpoint in self.all()[-1:]), default=0)

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:06d}"

    def _staging(self, step: int) -> Path:
        return self._folder / f".step-{step:06d}.partial"


def _manifest(folder: Path, step: int) -> dict[str, Any]:
    entries = {path.relative_to(folder).as_posix(): _facts(path) for path in files.files_under(folder)}
    return {"step": step, "slime": slime.__version__, "saved_at": time.time(), "files": entries}


def _facts(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    return {"bytes": size, "sha256": files.sha256(path) if size <= DIGEST_LIMIT else None}


def _file_problem(path: Path, facts: Mapping[str, Any]) -> str:
    if not path.exists():
        return f"{path.name} is missing"
    if (size := path.stat().st_size) != facts["bytes"]:
        return f"{path.name} has {size} bytes instead of {facts['bytes']}"
    if facts["sha256"] and files.sha256(path) != facts["sha256"]:
        return f"{path.name} has other content than was saved"
    return ""
