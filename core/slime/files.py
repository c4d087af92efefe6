"""Files that a kill or a full disk cannot tear: written aside, synced, then renamed; and one error for a full disk."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from slime.errors import SlimeError

SMALL_BYTES = 2**26
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_POINTER = b"version https://git-lfs"
ALMOST_FULL = 2**20
"""A write that fails for whatever reason while fewer bytes are free failed for lack of room: torch's file writer loses
the operating system's error and says only `unexpected pos 704 vs 598`."""


def read_small(path: Path) -> bytes:
    """The content of a file that describes others. Raises OSError if it cannot be read, is no file (a device may have
    no end), or has more than 64 MiB."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is no file", str(path))
    with path.open("rb") as file:
        data = file.read(SMALL_BYTES + 1)
    if len(data) > SMALL_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {human_bytes(SMALL_BYTES)}", str(path))
    return data


def is_pointer(path: Path) -> bool:
    """Whether Git left this file in the place of a large one, as git-lfs is not installed."""
    with path.open("rb") as file:
        return file.read(len(_POINTER)) == _POINTER


def pointer(path: Path) -> SlimeError:
    """The one line about `is_pointer`."""
    todo = "Run 'git lfs pull' there, or fetch it by 'hf download'."
    return SlimeError("it is a pointer of Git LFS, not the file itself", where=str(path), todo=todo)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data` so that a reader, or a crash at any point, sees the old content or the new one."""
    aside = path.with_name(f".{path.name}.new")
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish_folder(
    aside: Path, final: Path, manifest: tuple[str, bytes] | None = None, *, replace: bool = False
) -> None:
    """Give a folder that was written aside its name, so that a kill at any moment leaves all of it there, or nothing.

    Args:
        aside: beside `final`. Everything in it is on the disk itself before it is renamed.
        final: must not exist, unless it may be replaced.
        manifest: name and content of the file that is written last.
        replace: a folder that is there already. It stays until `aside` is whole.
    """
    for parent, _, names in os.walk(aside, topdown=False):  # children before parents
        for name in (*names, "."):
            sync(Path(parent, name))
    if manifest:
        write_atomic(aside / manifest[0], manifest[1])
    before = final.with_name(f".{final.name}.old")
    if replace and final.exists():
        shutil.rmtree(before, ignore_errors=True)  # left by a process that was killed while it removed it
        final.rename(before)
    aside.rename(final)
    sync(final.parent)
    if replace:
        shutil.rmtree(before, ignore_errors=True)


@contextmanager
def folder_aside(final: Path, *, replace: bool) -> Iterator[Path]:
    """An empty folder beside `final`, which gets that name when all is written (`publish_folder`). Raises SlimeError:
    the disk is full or refuses a write."""
    aside = final.with_name(f".{final.name}.new")
    shutil.rmtree(aside, ignore_errors=True)  # left by a process that was killed while it wrote
    with disk_errors(final):
        aside.mkdir(parents=True)
        yield aside
        publish_folder(aside, final, replace=replace)


def files_under(folder: Path) -> list[Path]:
    """Every file below `folder`, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def is_still(file: IO[Any], path: Path) -> bool:
    """Whether `path` names the open `file`; not if that was deleted, or replaced by another."""
    try:
        there = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return os.path.samestat(there, os.fstat(file.fileno()))


def human_bytes(count: float) -> str:
    """A size for people: 1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def free_bytes(path: Path) -> int:
    """Room in the file system of `path`, or of its nearest existing parent."""
    return shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.exists())).free


def disk_full(path: Path, needed: int = 0, key: str = "run.dir") -> SlimeError:
    """The error for a write that did not fit; arguments as in `disk_errors`."""
    need = f"it needs about {human_bytes(needed)} and " if needed else ""
    return SlimeError(
        f"the disk (or a quota or file-size limit on it) is full: {need}{human_bytes(free_bytes(path))} are free",
        where=str(path),
        todo=f"Free some space, or set `{key}` to a larger disk, and start again: the run resumes by itself.",
    )


@contextmanager
def disk_errors(path: Path, needed: int = 0, key: str = "run.dir") -> Iterator[None]:
    """Context in which a full or refusing disk becomes a SlimeError that names `path`; other errors pass unchanged.

    The whole chain of causes is searched, because libraries wrap the OSError of their writers.

    Args:
        path: what is being written.
        needed: its whole size in bytes, 0 if unknown.
        key: of the config, which says where it goes.
    """
    try:
        yield
    except (SlimeError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # not "Exception": torch's CheckpointException is none
        codes = {cause.errno for cause in _causes(error) if isinstance(cause, OSError)}
        if codes & set(FULL) or free_bytes(path) < ALMOST_FULL:
            raise disk_full(path, needed, key) from error
        if codes & set(REFUSED):
            todo = f"Set `{key}` to a folder of yours."
            raise SlimeError("no permission to write here", where=str(path), todo=todo) from error
        raise


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
