"""The run directory: made after validation, held by one process (docs/run-directory.md)."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any

from omegaconf import OmegaConf

from slime import earlier, files
from slime.checkpoints import published
from slime.config.keys import may_change
from slime.config.schema import Resume, SlimeConfig
from slime.errors import SlimeError, Stopped
from slime.run_config import changes_of_resume, container, of_learning, read_config

log = logging.getLogger(__name__)

FOLDERS = ("checkpoints", "logs", "samples")
LOCK, CONFIG = "lock", "config.yaml"


class RunDir:
    """The paths of a run; if made by `open`, also the hold on it until `close` or this process's death."""

    def __init__(self, path: Path, lock: IO[str] | None = None) -> None:
        self.path, self._lock = path, lock
        self._taken: dict[Path, IO[str]] = {}
        self._held: list[tuple[IO[Any], Path]] = [(lock, path / LOCK)] if lock else []
        self.config, self.plugins = path / CONFIG, path / "plugins.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints, self.logs, self.samples = (path / name for name in FOLDERS)
        self.lock = path / LOCK  # has content like no other: a host that reads the same there sees this directory
        self.export = path / "export"  # appears whole, at the end

    @classmethod
    def open(cls, path: Path, resume: Resume = Resume.auto) -> RunDir:
        """Create or re-enter the run directory `path` and lock it; with `restart` its content is moved away before.
        Raises SlimeError if another process holds it, or it cannot be written, or `resume` is `never` and it holds a
        run, or `resume` is `must` and it holds no checkpoint."""
        path = Path(path).absolute()
        _check_resume(path, resume)
        if resume is Resume.restart:
            _move_away(path)
        _make(path)
        with files.disk_errors(path):
            run = cls(path, _lock(path / LOCK))
            for folder in FOLDERS:
                (path / folder).mkdir(exist_ok=True)
        return run

    @classmethod
    def obstacle(cls, cfg: SlimeConfig, folders: Mapping[str, Path]) -> SlimeError | None:
        """Why `open`, `write_config` or `take` of these folders, by the key that names each, would refuse this run now,
        if they would; leaves no trace."""
        run = cls((Path(cfg.run.dir) / cfg.run.name).absolute())
        try:
            _check_resume(run.path, cfg.run.resume)
            _check_can_be_made(run.path)
            for key, folder in folders.items():
                _check_can_be_made(folder, f"`{key}`")
            if run.lock.exists():
                with run.lock.open() as file:
                    _hold(file, fcntl.LOCK_SH)
            run.require_work(cfg)
        except SlimeError as error:
            return error
        return None

    def require_work(self, cfg: SlimeConfig) -> None:
        """Stop before a run that may not continue what is here, or that would only change its record. Raises
        SlimeError if it is another run's, or finished while this config is another, or its checkpoints are gone."""
        if cfg.run.resume is Resume.restart:
            return
        if (changes := of_learning(self._changes(cfg))) and (said := earlier.finished(self.path, cfg)):
            what = f"{said}, with other keys ({'; '.join(changes)})"
            todo = "Set another `run.name` for a run with these keys, or raise `run.num_steps` to train on."
            raise SlimeError(what, where=str(self.path), todo=todo)
        differs = changes_of_resume(read_config(self.config), cfg) if self.config.exists() else {}
        earlier.require_checkpoint(self.path, of_learning(differs))

    @classmethod
    def finished(cls, cfg: SlimeConfig) -> SlimeError | None:
        """The line about a run that has nothing left to do, which is no error of the user's."""
        path = (Path(cfg.run.dir) / cfg.run.name).absolute()
        if cfg.run.resume is Resume.restart or not (said := earlier.finished(path, cfg)):
            return None
        todo = "Raise `run.num_steps` to train on; for a new run set another `run.name`, or `run.resume=restart`."
        return SlimeError(said, where=str(path), todo=todo)

    def write_config(self, cfg: SlimeConfig) -> list[str]:
        """Write the resolved configuration; beside a checkpoint, first compare with the one that made it. Returns the
        changes since then, as `key: old -> new`. Raises SlimeError if a key that a resumed run may not change differs,
        so that the checkpoint belongs to another run."""
        new = container(cfg)
        if cfg.run.resume is Resume.restart:
            new["run"]["resume"] = Resume.auto.name  # a start from this file goes on with what it began
        if changes := self._changes(cfg):
            log.warning("%s continues with changes: %s", self.path, "; ".join(changes.values()))
        with files.disk_errors(self.config):
            files.write_atomic(self.config, OmegaConf.to_yaml(OmegaConf.create(new)).encode())
        return list(changes.values())

    def _changes(self, cfg: SlimeConfig) -> dict[str, str]:
        """Key -> how it differs from the config of the newest checkpoint; SlimeError if it may not."""
        newest = published(self.checkpoints)[-1:]
        made_by = next((path for each in newest for path in (each.path / CONFIG, self.config) if path.exists()), None)
        changes = changes_of_resume(read_config(made_by), cfg) if made_by else {}
        free = [*may_change()] if changes else []
        if refused := [text for key, text in changes.items() if not any(fnmatch(key, own) for own in free)]:
            raise SlimeError(
                f"this directory holds a run of another configuration ({'; '.join(refused)})",
                where=str(self.path),
                todo="Undo the change to continue that run, or set another `run.name` for a new one.",
            )
        return changes

    def record_config(self, folder: Path) -> None:
        """Copy the configuration into a checkpoint: the file here becomes that of the next start, which may die."""
        shutil.copyfile(self.config, folder / CONFIG)

    def write_plugins(self, provenance: Mapping[str, Any]) -> None:
        """Write which plugins are installed and which of them this run uses."""
        with files.disk_errors(self.plugins):
            files.write_atomic(self.plugins, json.dumps(provenance, indent=2).encode() + b"\n")

    def hold(self, file: IO[Any], path: Path) -> None:
        """Have `require_intact` also ask whether `path` is still this file, as long as it is open."""
        self._held.append((file, path))

    def require_intact(self) -> None:
        """Stop if this is no longer the directory that was opened: what went on would be written into a new one.
        Raises SlimeError if somebody deleted or replaced it, or a file in it that this process holds."""
        for file, path in self._held:
            if not file.closed and not files.is_still(file, path):
                raise SlimeError(
                    "it was deleted or replaced while the run was using it",
                    where=str(path if self.path.exists() else self.path),
                    todo="Put the directory back and start again to resume, or start another run.",
                )

    def take(self, folder: Path, key: str) -> Path:
        """Hold another folder too, which `key` of the config names, as long as this one; returns its lock file. Raises
        SlimeError if another process holds it, or it cannot be written."""
        path = folder / LOCK
        if path not in self._taken:
            _make(folder, f"`{key}`")
            with files.disk_errors(folder, key=key):
                self._taken[path] = _lock(path, f"`{key}`")
            self.hold(self._taken[path], path)
        return path

    def close(self) -> None:
        """Let another process have the directory."""
        for lock in [*self._taken.values(), *([self._lock] if self._lock else [])]:
            lock.close()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            if isinstance(error, Exception):
                self.require_intact()  # else the error that was raised follows from that
        finally:
            self.close()


def _check_resume(path: Path, resume: Resume) -> None:
    if resume is Resume.must and not earlier.steps_done(path):
        raise SlimeError("there is no checkpoint to resume from", where=str(path), todo="Use `run.resume=auto`.")
    if resume is Resume.never and RunDir(path).config.exists():
        raise SlimeError(
            "this directory already holds a run and `run.resume` is never",
            where=str(path),
            todo="Set another `run.name`, or `run.resume=auto` to continue it.",
        )


def _check_can_be_made(path: Path, keys: str = "`run.dir` or `run.name`") -> None:
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if not there.is_dir():
        raise _cannot_be_made(path, f"{there} is a file", keys)
    try:
        if not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError
        if there != path:  # tried, for root has access to all, to /proc too, where nobody makes a folder
            os.rmdir(tempfile.mkdtemp(prefix=".slime-", dir=there))
    except OSError as error:
        raise _cannot_be_made(path, f"{there} cannot be written", keys) from error


def _make(path: Path, keys: str = "`run.dir` or `run.name`") -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_be_made(path, error.strerror or str(error), keys) from error


def _cannot_be_made(path: Path, why: str, keys: str = "`run.dir` or `run.name`") -> SlimeError:
    return SlimeError(f"cannot make the directory ({why})", where=str(path), todo=f"Set {keys}.")


def _lock(path: Path, keys: str = "`run.name`") -> IO[str]:
    """Take the lock file; the kernel lets go of it when this process dies, however it dies."""
    file = path.open("a+")
    try:
        _hold(file, fcntl.LOCK_EX, keys)
    except SlimeError:
        file.close()
        raise
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n{secrets.token_hex()}\n")  # like no other lock
    file.flush()
    return file


def _hold(lock: IO[str], how: int, keys: str = "`run.name`") -> None:
    """Hold the open lock file `how` (LOCK_EX, or LOCK_SH to see whether one could) until it is closed. A process that
    only looks holds it for microseconds, which are waited for."""
    for _ in range(11):
        with suppress(BlockingIOError):
            return fcntl.flock(lock, how | fcntl.LOCK_NB)
        time.sleep(0.01)
    lock.seek(0)
    what = f"another run is using this directory ({lock.readline().strip() or 'another process'})"
    todo = f"Wait for it, stop it, or set another {keys}."
    raise SlimeError(what, where=str(Path(lock.name).parent), todo=todo)


def _move_away(path: Path) -> None:
    """Give what an earlier run left another name; nothing, if none was here. A run that is going on stays."""
    if not path.exists() or not any(path.iterdir()):
        return
    lock = _lock(path / LOCK)
    try:
        with files.disk_errors(path):
            log.warning("%s was moved to %s", path, path.rename(earlier.beside(path)))
    finally:
        lock.close()


@contextmanager
def with_resume_hint(run: RunDir, num_sft_steps: int) -> Iterator[None]:
    """Say at a Ctrl-C, and where the run was asked to stop, what the same command would do next."""
    try:
        yield
    except (KeyboardInterrupt, Stopped) as end:
        newest = [step_of(checkpoint.step, num_sft_steps) for checkpoint in published(run.checkpoints)][-1:]
        then = f"the same command continues after {newest[0]}" if newest else "nothing was saved yet"
        if isinstance(end, Stopped):
            raise Stopped(f"{end.what}: {then}", todo=end.todo) from None
        end.add_note(then)
        raise


def step_of(total: int, num_sft_steps: int) -> str:
    """`rl 5`, as the progress line has it, for a checkpoint, which is numbered by the steps of both stages."""
    return f"rl {total - num_sft_steps}" if total > num_sft_steps else f"sft {total}"
