"""Paths of the config: ordinary ones, and `pkg://package/sub/file` for files inside an installed package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from slime.errors import SlimeError, nearest

SCHEME = "pkg://"


def resolve(path: str) -> Path:
    """The existing file or folder that `path` names, absolute; SlimeError with the nearest name if there is none."""
    found = _in_package(path) if path.startswith(SCHEME) else Path(path).expanduser().absolute()
    if not found.exists():
        raise SlimeError(f"there is no '{path}'", where=_missing_part(found), todo=_neighbours(found))
    return found


def exists(path: str) -> bool:
    """Whether `path` names a file or folder that is there; False also where its package is not installed."""
    try:
        resolve(path)
    except SlimeError:
        return False
    return True


def located(path: str) -> str:
    """The same path for a process with another working directory; `pkg://` stays, hosts have packages elsewhere."""
    return path if path.startswith(SCHEME) else str(Path(path).expanduser().absolute())


def _in_package(path: str) -> Path:
    """Locate the top-level package without importing it, so that a data path never runs a plugin's code."""
    package, _, inside = path.removeprefix(SCHEME).partition("/")
    top, *below = package.split(".")
    spec = importlib.util.find_spec(top) if top else None
    if spec is None or not spec.submodule_search_locations:
        raise SlimeError(f"there is no installed package '{package}'", where=path, todo=f"Run 'pip install {package}'.")
    return Path(next(iter(spec.submodule_search_locations))).joinpath(*below, inside)


def _first_missing(path: Path) -> Path:
    """The topmost part of a path that does not exist."""
    return next(part for part in [*reversed(path.parents), path] if not part.exists())


def _missing_part(path: Path) -> str:
    missing = _first_missing(path)
    return "" if missing == path else f"folder {missing} is missing"


def _neighbours(path: Path) -> str:
    missing = _first_missing(path)
    match = nearest(missing.name, (entry.name for entry in missing.parent.iterdir()))
    return f"Did you mean '{match}'?" if match else "Check the path."
