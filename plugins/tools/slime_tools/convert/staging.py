"""The folder beside the destination in which a conversion grows, and from which it goes on after a kill.

.NAME.converting/plan.json    what is converted from what: only the same command goes on here
                 journal/     facts of each file that is whole and on the disk
                 files/       what becomes NAME by one rename, the manifest in it written last
"""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import slime
from slime import files
from slime.checkpoints import CONVERTED
from slime.digest import FileFacts, facts_of
from slime.errors import SlimeError
from slime.weights.hf_files import HfTensors


def identity_of(source: Path, files: HfTensors) -> dict[str, Any]:
    """JSON that changes when a file of the source does."""
    return stats(source, {tensor.file for tensor in files.tensors.values()} | {"config.json"})


def stats(source: Path, names: Iterable[str]) -> dict[str, Any]:
    """Size and time of files: JSON."""
    found = {name: (source / name).stat() for name in sorted(names)}
    return {
        "source": str(source.absolute()),
        "source_files": {name: [stat.st_size, stat.st_mtime_ns] for name, stat in found.items()},
    }


_POLL_S = 0.2


class Staging:
    """One conversion's folder.

    Args:
        destination: what will be there at the end; must not exist.
        identity: JSON that says what is converted from what, and how.
    """

    def __init__(self, destination: Path, identity: Mapping[str, Any]) -> None:
        self._destination = destination
        self._identity = json.loads(json.dumps({"slime": slime.__version__, **identity}))
        self._folder = destination.with_name(f".{destination.name}.converting")
        self.files, self._journal = self._folder / "files", self._folder / "journal"
        self._lock: IO[str] | None = None

    def open(self) -> None:
        """Take the folder: empty, or as the same conversion left it.

        Raises:
            SlimeError: the destination exists, or the folder belongs to another conversion, or to one that runs.
        """
        require_absent(self._destination)
        with files.disk_errors(self._destination):
            self.files.mkdir(parents=True, exist_ok=True)
            self._journal.mkdir(exist_ok=True)
        self._lock = (self._folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            todo = "Wait for it, or choose another destination."
            raise SlimeError("another conversion writes here", where=str(self._folder), todo=todo) from None
        if not self._plan.is_file():
            files.write_atomic(self._plan, json.dumps(self._identity, indent=1).encode())
        elif self._begun() != self._identity:
            what = "a conversion of another source, format or slime was begun here"
            todo = f"Remove {self._folder}, or choose another destination."
            raise SlimeError(what, where=str(self._destination), todo=todo)

    def __getstate__(self) -> dict[str, Any]:
        """For a process that writes some of the files: the lock stays here."""
        return {**self.__dict__, "_lock": None}

    def join(self) -> None:
        """Wait until another process has opened this conversion."""
        while not self._plan.is_file() or self._begun() != self._identity:
            time.sleep(_POLL_S)

    @property
    def _plan(self) -> Path:
        return self._folder / "plan.json"

    def _begun(self) -> Any:
        return json.loads(self._plan.read_text(encoding="utf-8"))

    def complete(self, name: str, write: Callable[[Path], tuple[FileFacts, Any]]) -> Any:
        """Have the file `name` written, unless it is there already and is what was written.

        Args:
            write: writes the file at the path it is given; returns its facts, and what to keep with them (JSON).

        Returns:
            What `write` gave to be kept.

        Raises:
            SlimeError: the file reads back other than it was written.
        """
        path, entry = self.files / name, self._journal / f"{name}.json"
        if entry.is_file():
            kept = json.loads(entry.read_text(encoding="utf-8"))
            if path.is_file() and facts_of(path) == kept["facts"]:
                return kept["more"]
            entry.unlink()
        with files.disk_errors(path):
            facts, more = write(path)
        if (found := facts_of(path)) != facts:
            what = f"reads back with CRC-32 {found['crc32']}, written was {facts['crc32']}"
            raise SlimeError(what, where=str(path), todo="Check the disk.")
        files.write_atomic(entry, json.dumps({"facts": facts, "more": more}).encode())
        return more

    def recorded(self) -> dict[str, FileFacts]:
        """Facts of the files that are whole, by name."""
        entries = sorted(self._journal.glob("*.json"))
        return {
            entry.name.removesuffix(".json"): json.loads(entry.read_text(encoding="utf-8"))["facts"]
            for entry in entries
        }

    def written_bytes(self) -> int:
        try:
            return sum(path.stat().st_size for path in files.files_under(self.files))
        except FileNotFoundError:  # another process has just given one of them, or all, another name
            return 0

    def publish(self) -> None:
        """Write the manifest, flush everything, and give the folder its name."""
        facts = self.recorded()
        for path in files.files_under(self.files):
            name = path.relative_to(self.files).as_posix()
            facts[name] = facts.get(name) or facts_of(path)
            assert path.stat().st_size == facts[name]["bytes"], f"{name} is as long as it was written"
        with files.disk_errors(self._destination):
            manifest = json.dumps({**self._identity, "files": facts}, indent=1).encode()
            files.publish_folder(self.files, self._destination, (CONVERTED, manifest))
        shutil.rmtree(self._folder)


def require_absent(destination: Path) -> None:
    """Raises SlimeError: the folder to write exists."""
    if destination.exists():
        raise SlimeError("the folder exists already", where=str(destination), todo="Choose another, or remove it.")


def check(folder: Path, processes: int) -> int:
    """Compare every file of a converted folder with the manifest; returns how many there are.

    Raises:
        SlimeError: there is no manifest, or a file is missing or has other content than was written.
    """
    manifest = folder / CONVERTED
    if not manifest.is_file():
        raise SlimeError(f"there is no {CONVERTED}", where=str(folder), todo="Name a folder that slime convert wrote.")
    promised = json.loads(manifest.read_text(encoding="utf-8"))["files"]
    for name in promised:
        if not (folder / name).is_file():
            raise SlimeError("is missing", where=str(folder / name), todo="Convert, or copy, it again.")
    with ThreadPoolExecutor(processes) as pool:
        found = pool.map(facts_of, [folder / name for name in promised])
    for (name, facts), now in zip(promised.items(), found, strict=True):
        if facts != now:
            what = f"has {now['bytes']} bytes, CRC-32 {now['crc32']}; written were {facts['bytes']}, {facts['crc32']}"
            raise SlimeError(what, where=str(folder / name), todo="Convert, or copy, it again.")
    return len(promised)
