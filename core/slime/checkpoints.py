"""The checkpoint store: written aside, synced, then published by a manifest and one rename.

    checkpoints/step-000010/manifest.json     written last: step, slime version, every file with size and digest
                            driver.json       the driver's state: prompt position, buffer, versions
                            ...               what the trainer ranks wrote
    checkpoints/.step-000020.partial          a save under way, or one that died; the next save removes it

At any instant every `step-*` folder is whole, so a kill at any point leaves the last good checkpoint usable.
On several nodes the folder lies on a shared file system whose files are visible to all once their writer closed them.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import slime
from slime import files
from slime.digest import FileFacts, facts_by_name, facts_of, sealed, unsealed
from slime.errors import SlimeError

MANIFEST, DRIVER = "manifest.json", "driver.json"
CONVERTED = "slime-manifest.json"
"""The last file that `slime convert` writes into a folder: every file with its size and digest."""

Examine = Callable[[Sequence[Path]], Sequence[FileFacts]]
"""Reads files whole; returns the facts of each, in order. In a run the trainer ranks share this."""

log = logging.getLogger(__name__)


def examine(paths: Sequence[Path]) -> list[FileFacts]:
    """Read the files in this process; one that cannot be read has no facts that fit any."""
    return [_facts_or_error(path) for path in paths]


def _facts_or_error(path: Path) -> FileFacts:
    try:
        return facts_of(path)
    except OSError as error:
        return {"bytes": 0, "crc32": f"unreadable ({error.strerror})"}


@dataclass(frozen=True)
class Checkpoint:
    """One published checkpoint: its step and its folder."""

    step: int
    path: Path

    def driver_state(self) -> dict[str, Any]:
        """The driver's state, as it was saved. Raises SlimeError if the file holds something else."""
        from slime import driver_state  # imports numpy, which `slime plan` does without

        path = self.path / DRIVER
        try:
            return driver_state.loads(path.read_bytes())
        except ValueError as error:
            todo = "Put it back as it was saved, or move this checkpoint away to continue from the one before."
            raise SlimeError(f"it is not what slime writes ({error})", where=str(path), todo=todo) from error

    def problem(self, examine: Examine | None = examine) -> str:
        """The fault of the first bad file; empty if there is none. Without `examine` only sizes are compared."""
        try:
            _compare(self.path, self.manifest()["files"], examine)
        except _Damaged as damage:
            return str(damage)
        return ""

    def manifest(self) -> dict[str, Any]:
        """The manifest; raises `_Damaged` where it is not what was written here."""
        return _read_manifest(self.path / MANIFEST, self.step)


def require_as_written(folder: Path, examine: Examine = examine) -> None:
    """Compare weights that a run starts from with what their writer noted: another run, or `slime convert`. Those of
    another program are taken as they are, with a warning. Raises SlimeError if a file is not what was written."""
    try:
        if (folder / MANIFEST).is_file():
            saved = _read_manifest(folder / MANIFEST)["files"]
        elif (folder / CONVERTED).is_file():
            saved = _read_converted(folder / CONVERTED)
        else:
            log.warning("%s has neither %s nor %s: its files are not compared", folder, MANIFEST, CONVERTED)
            return
        _compare(folder, saved, examine)
    except _Damaged as damage:
        todo = "Copy or convert it again, or name another."
        raise SlimeError(f"{folder} is not what was written: {damage}", where="model.weights", todo=todo) from None


def _compare(folder: Path, saved: Mapping[str, FileFacts], examine: Examine | None) -> None:
    """Raise `_Damaged` at the first file that differs. Sizes first: they cost nothing."""
    paths = {name: folder / name for name in saved}
    for name, path in paths.items():
        with _damage_of(path.relative_to(folder)):
            if not path.is_file():
                raise FileNotFoundError
            size = path.stat().st_size
        if size != saved[name]["bytes"]:
            raise _Damaged(f"{name} has {size} bytes instead of {saved[name]['bytes']}")
    for name, facts in zip(paths, examine([*paths.values()]) if examine else saved.values(), strict=True):
        if facts != saved[name]:
            found, wanted = facts["crc32"], saved[name]["crc32"]
            raise _Damaged(f"{name} has other content than was saved: its CRC-32 is {found}, it was {wanted}")


@dataclass
class Staging:
    """A checkpoint being written."""

    path: Path  # the folder to write into
    written: dict[str, FileFacts] = field(default_factory=dict)  # facts that writers of files know; others are read


class _Damaged(Exception):
    """A file of a checkpoint is not what was saved."""


class CheckpointStore:
    """The checkpoints of one run, in the `checkpoints/` of its directory. The newest `keep` stay; older ones are
    removed after each save."""

    def __init__(self, folder: Path, keep: int) -> None:
        if keep < 1:
            raise SlimeError(f"cannot keep {keep} checkpoints", where="train.checkpoint.keep", todo="Set 1 or more.")
        self._folder, self._keep = folder, keep
        self._damaged: set[int] = set()
        self._removing = ThreadPoolExecutor(1, "old checkpoints")
        self._removed: Future[None] | None = None

    def all(self) -> list[Checkpoint]:
        """Every published checkpoint, oldest first, whether its files are still good or not."""
        return published(self._folder)

    def latest(self, examine: Examine = examine) -> Checkpoint | None:
        """The newest checkpoint whose files are what was saved; None if nothing was ever published. A damaged one is
        skipped with a warning that names the file. Raises SlimeError if every checkpoint is damaged; starting over is
        for the user to decide."""
        problem = ""
        for path in sorted(path for path in self._folder.glob("step-*") if _step(path) is None):
            log.warning("ignoring %s: it has not the name of a checkpoint, such as step-000010", path)
        for checkpoint in reversed(self.all()):
            problem = checkpoint.problem(examine)
            if not problem:
                if (version := checkpoint.manifest()["slime"]) != slime.__version__:
                    log.warning("%s was saved by slime %s, this is %s", checkpoint.path, version, slime.__version__)
                return checkpoint
            self._damaged.add(checkpoint.step)
            log.warning("skipping damaged checkpoint %s: %s", checkpoint.path, problem)
        if problem:
            todo = "Bring the file back, or remove the folder to start over."
            raise SlimeError(f"every checkpoint is damaged ({problem})", where=str(self._folder), todo=todo)
        return None

    @contextmanager
    def saving(self, step: int, state: Mapping[str, Any]) -> Iterator[Staging]:
        """Yield an empty folder for the trainers to write into, and publish it with `state` as it was before the
        block. Whatever died half-way before is removed, and what fails now, so that a full disk has room for logs and
        metrics. Raises SlimeError if the disk is full, or has less room than the last checkpoint took, or a file that
        somebody wrote is not here; earlier checkpoints are untouched."""
        from slime import driver_state  # imports numpy, which `slime plan` does without

        path = self._folder / _name(step)
        self._folder.mkdir(exist_ok=True)
        self._clean(path, step)
        state_then = driver_state.dumps(state)
        newest = [each for checkpoint in self.all()[-1:] for each in files.files_under(checkpoint.path)]
        if (needed := sum(each.stat().st_size for each in newest)) > files.free_bytes(self._folder):
            raise files.disk_full(path, needed)
        staging = Staging(self._folder / f".{path.name}.partial")
        try:
            with files.disk_errors(path, needed):
                staging.path.mkdir()
                yield staging
                (staging.path / DRIVER).write_bytes(state_then)
                files.publish_folder(staging.path, path, (MANIFEST, sealed(_manifest(staging, step))))
        finally:
            shutil.rmtree(staging.path, ignore_errors=True)  # is there no more once it is published
        self._prune()

    def _clean(self, path: Path, step: int) -> None:
        if self._removed:
            wait([self._removed])
        for leftover in self._folder.glob(".step-*"):
            shutil.rmtree(leftover)
        if path.exists():
            assert step in self._damaged, f"step {step} is already saved"
            path.rename(path.with_name(f"damaged-{path.name}-{time.time_ns()}"))
            self._damaged.remove(step)

    def _prune(self) -> None:
        """Take the oldest their names. A thread removes them: a file system takes a second for 5 GB, in which no step
        begins."""
        good = [checkpoint for checkpoint in self.all() if checkpoint.step not in self._damaged]
        for checkpoint in good[: -self._keep]:
            # Renamed first: a kill while files vanish must not leave something that looks like a checkpoint.
            old = checkpoint.path.rename(self._folder / f".{checkpoint.path.name}.old")
            self._removed = self._removing.submit(shutil.rmtree, old)


def published(folder: Path) -> list[Checkpoint]:
    """Every checkpoint in a run's `checkpoints/`, oldest first, good or not."""
    found = [Checkpoint(step, path) for path in folder.glob("step-*") if (step := _step(path)) is not None]
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _step(path: Path) -> int | None:
    """The step that a folder is named after; None for everything but a checkpoint's folder."""
    digits = path.name.removeprefix("step-")
    is_ours = digits.isascii() and digits.isdecimal() and path.name == _name(int(digits)) and path.is_dir()
    return int(digits) if is_ours else None


def _manifest(staging: Staging, step: int) -> dict[str, Any]:
    paths = {path.relative_to(staging.path).as_posix(): path for path in files.files_under(staging.path)}
    for name, facts in staging.written.items():
        if name not in paths or paths[name].stat().st_size != facts["bytes"]:
            todo = "Put run.dir on a file system that every host of the run shares."
            raise SlimeError("a file that a trainer wrote is not here", where=str(staging.path / name), todo=todo)
    entries = {name: staging.written.get(name) or facts_of(path) for name, path in paths.items()}
    return {"step": step, "slime": slime.__version__, "saved_at": time.time(), "files": entries}


def _read_converted(path: Path) -> dict[str, FileFacts]:
    with _damage_of(Path(path.name)):
        try:
            return facts_by_name(json.loads(files.read_small(path))["files"])
        except (KeyError, TypeError, RecursionError):
            raise ValueError("is not a manifest") from None


def _read_manifest(path: Path, step: int | None = None) -> dict[str, Any]:
    """A checkpoint's, of `step` if that is known."""
    with _damage_of(Path(path.name)):
        manifest = unsealed(files.read_small(path))
        if not manifest.keys() >= {"step", "slime", "files"}:
            raise ValueError("is not a manifest")
        if step is not None and manifest["step"] != step:
            raise ValueError(f"is of step {manifest['step']}")
        return {**manifest, "files": facts_by_name(manifest["files"])}


@contextmanager
def _damage_of(path: Path) -> Iterator[None]:
    """Context that tells a fault of a manifest with its name."""
    try:
        yield
    except FileNotFoundError:
        raise _Damaged(f"{path} is missing") from None
    except OSError as error:
        raise _Damaged(f"{path} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise _Damaged(f"{path} {error}") from None
