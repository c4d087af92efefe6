"""The run directory: made after validation, held by one process, and what lies where in it.

config.yaml  plugins.json  metrics.jsonl  summary.txt  lock
checkpoints/  logs/  samples/  eval/  export/  and what plugins leave: tensorboard/  report.html
"""

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
from types import TracebackType
from typing import IO, Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from slime import files
from slime.checkpoints import published
from slime.config.keys import may_change
from slime.config.schema import Resume, SlimeConfig
from slime.errors import SlimeError

log = logging.getLogger(__name__)

FOLDERS = ("checkpoints", "logs", "samples")
LOCK, CONFIG = "lock", "config.yaml"


class RunDir:
    """The paths of a run; made by `open`, also the hold on it until `close` or this process's death."""

    def __init__(self, path: Path, lock: IO[str] | None = None) -> None:
        self.path, self._lock = path, lock
        self._taken: dict[Path, IO[str]] = {}
        self._held: list[tuple[IO[Any], Path]] = [(lock, path / LOCK)] if lock else []
        self.config, self.plugins = path / CONFIG, path / "plugins.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints, self.logs, self.samples = (path / name for name in FOLDERS)
        self.lock = path / LOCK  # like no other: whoever reads the same there sees this directory
        self.export = path / "export"  # appears whole, at the end

    @classmethod
    def open(cls, path: Path, resume: Resume = Resume.auto) -> RunDir:
        """Create or re-enter the run directory `path` and lock it.

        Raises:
            SlimeError: another process holds it; it cannot be written; `resume` is `never` and it holds a run;
                `resume` is `must` and it holds no checkpoint.
        """
        path = Path(path).absolute()
        _check_resume(path, resume)
        _make(path)
        with files.disk_errors(path):
            run = cls(path, _lock(path / LOCK))
            for folder in FOLDERS:
                (path / folder).mkdir(exist_ok=True)
        return run

    @classmethod
    def obstacle(cls, cfg: SlimeConfig, folders: Mapping[str, Path]) -> SlimeError | None:
        """Why `open`, `write_config` or `take` would refuse this run now, if they would; leaves no trace.

        Args:
            folders: by the key that names it, what it is going to `take`.
        """
        run = cls((Path(cfg.run.dir) / cfg.run.name).absolute())
        try:
            _check_resume(run.path, cfg.run.resume)
            _check_can_be_made(run.path)
            for key, folder in folders.items():
                _check_can_be_made(folder, f"`{key}`")
            if run.lock.exists():
                with run.lock.open() as file:
                    _hold(file, fcntl.LOCK_SH)
            run._changes(container(cfg))
        except SlimeError as error:
            return error
        return None

    def write_config(self, cfg: SlimeConfig) -> list[str]:
        """Write the resolved configuration; beside a checkpoint, first compare with the one that made it.

        Returns:
            What changed since then, as `key: old -> new`; empty for a new run.

        Raises:
            SlimeError: a key that a resumed run may not change differs, so that the checkpoint belongs to another run.
        """
        new = container(cfg)
        changes = self._changes(new)
        if changes:
            log.warning("%s continues with changes: %s", self.path, "; ".join(changes.values()))
        with files.disk_errors(self.config):
            files.write_atomic(self.config, OmegaConf.to_yaml(OmegaConf.create(new)).encode())
        return list(changes.values())

    def _changes(self, new: Mapping[str, Any]) -> dict[str, str]:
        """Key -> how it differs from the config of the checkpoint that is here; SlimeError if it may not."""
        made_by = self._config_of_newest()
        changes = _changes(flat(read_config(made_by)), flat(new)) if made_by else {}
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

    def _config_of_newest(self) -> Path | None:
        """That of the checkpoint which the run continues from, if there is one."""
        checkpoints = published(self.checkpoints)
        own = checkpoints[-1].path / CONFIG if checkpoints else self.config
        return next((path for path in (own, self.config) if checkpoints and path.exists()), None)

    def write_plugins(self, provenance: Mapping[str, Any]) -> None:
        """Write which plugins are installed and which of them this run uses."""
        with files.disk_errors(self.plugins):
            files.write_atomic(self.plugins, json.dumps(provenance, indent=2).encode() + b"\n")

    def hold(self, file: IO[Any], path: Path) -> None:
        """As long as `file` is open, `require_intact` also asks whether `path` is still that file."""
        self._held.append((file, path))

    def require_intact(self) -> None:
        """Stop if this is no longer the directory that was opened: what went on would be written into a new one.

        Raises:
            SlimeError: somebody deleted or replaced it, or a file in it that this process holds.
        """
        for file, path in self._held:
            if not file.closed and not files.is_still(file, path):
                raise SlimeError(
                    "it was deleted or replaced while the run was using it",
                    where=str(path if self.path.exists() else self.path),
                    todo="Put the directory back and start again to resume, or start another run.",
                )

    def take(self, folder: Path, key: str) -> Path:
        """Hold another folder too, which `key` of the config names, as long as this one; returns its lock file.

        Raises:
            SlimeError: another process holds it, or it cannot be written.
        """
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, Exception):
                self.require_intact()  # else whatever was raised follows from that
        finally:
            self.close()


def _check_resume(path: Path, resume: Resume) -> None:
    if resume is Resume.must and not _has_checkpoint(path):
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
    """Hold the open lock file `how` (LOCK_EX, or LOCK_SH to see whether one could) until it is closed.

    Who only looks holds it for microseconds, which are waited for.
    """
    for _ in range(10):
        with suppress(BlockingIOError):
            return fcntl.flock(lock, how | fcntl.LOCK_NB)
        time.sleep(0.01)
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        raise SlimeError(
            f"another run is using this directory ({lock.readline().strip() or 'another process'})",
            where=str(Path(lock.name).parent),
            todo=f"Wait for it, stop it, or set another {keys}.",
        ) from error


def _has_checkpoint(path: Path) -> bool:
    return bool(published(path / "checkpoints"))


def container(cfg: SlimeConfig) -> dict[str, Any]:
    container = OmegaConf.to_container(OmegaConf.structured(cfg), resolve=True, enum_to_str=True)
    assert isinstance(container, dict)
    return {str(section): keys for section, keys in container.items()}


def read_config(path: Path) -> dict[str, Any]:
    """Section -> key -> value, of the config.yaml of a run.

    Raises:
        SlimeError: it cannot be read, or is something else.
    """
    try:
        found = OmegaConf.to_container(OmegaConf.load(path))
        sound = isinstance(found, dict) and all(isinstance(keys, dict) for keys in found.values())
        reason = "" if sound else "it is no table of sections"
    except (OSError, ValueError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0]
    if reason:
        todo = "Bring the file back, or name another run."
        raise SlimeError(f"this is not the config of a run ({reason})", where=str(path), todo=todo)
    assert isinstance(found, dict)
    return {str(name): keys for name, keys in found.items()}


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one with dotted keys; an empty mapping vanishes."""
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    parts = (flat(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in tree.items())
    return {key: value for part in parts for key, value in part.items()}


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """Every key that differs, with `key: old -> new`; `-` stands for a key that is not there."""
    keys = sorted(key for key in old.keys() | new.keys() if old.get(key, "-") != new.get(key, "-"))
    return {key: f"{key}: {old.get(key, '-')} -> {new.get(key, '-')}" for key in keys}


@contextmanager
def with_resume_hint(run: RunDir, num_sft_steps: int) -> Iterator[None]:
    """Note at a Ctrl-C what the same command would do next.

    Args:
        num_sft_steps: supervised steps of the whole run.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        newest = [step_of(checkpoint.step, num_sft_steps) for checkpoint in published(run.checkpoints)][-1:]
        interrupt.add_note(f"the same command continues after {newest[0]}" if newest else "nothing was saved yet")
        raise


def step_of(total: int, num_sft_steps: int) -> str:
    """`rl 5`, as the progress line says it, of a checkpoint, which is numbered by the steps of both stages."""
    return f"rl {total - num_sft_steps}" if total > num_sft_steps else f"sft {total}"
