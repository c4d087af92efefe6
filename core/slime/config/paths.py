"""Paths of the config: ordinary ones, `pkg://package/sub/file` for files inside an installed package, and addresses of
prompt sets that plugins make (hook `slime_prompt_sets`)."""

from __future__ import annotations

import glob
import importlib.util
import re
from pathlib import Path, PurePosixPath

from slime.config.extended import PROMPT_SETS
from slime.errors import SlimeError, did_you_mean, nearest

SCHEME = "pkg://"
MAX_SHOWN = 200
"""Characters of a path in an error."""
MAX_BESIDE = 3
"""Names that are told, of those beside a missing one."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve(path: str) -> Path:
    """The existing file or folder that `path` names, absolute; SlimeError with the nearest name if there is none."""
    found = _place(path)
    if not _is_there(found):
        hub = f" If it is an id of the Hugging Face hub, run '{fetch(path, path)}'." if is_hub_id(path) else ""
        missing = _first_missing(found)
        where = "" if missing == found else f"folder {missing} is missing"
        raise SlimeError(f"there is no '{path}'", where=where, todo=_neighbours(missing, found) + hub)
    return found


def is_hub_id(path: str) -> bool:
    """Whether it reads as the name of a model or data set on the Hugging Face hub, and not as that of a file."""
    return bool(_HUB_ID.fullmatch(path)) and not PurePosixPath(path).suffix[1:2].isalpha()


def fetch(hub_id: str, folder: object, kind: str = "model") -> str:
    """The command that fetches a model, or another kind of repository, from the hub into a folder."""
    repository = "" if kind == "model" else f"--repo-type {kind} "
    return f"hf download {repository}{hub_id} --local-dir {folder}"


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError) as error:  # a name that is too long, for instance
        fault = getattr(error, "strerror", None) or error
        shown = str(path) if len(str(path)) <= MAX_SHOWN else f"{path.name[:40]}..."
        raise SlimeError(f"'{shown}' cannot be a path: {fault}", todo="Check the path.") from error


def resolve_rows(path: str) -> Path:
    """As `resolve`; a pattern such as `folder/train-*.parquet` and a split such as `folder:train`, which name nothing
    themselves, stay as they are, and a plugin makes the file of an address with its scheme.

    Raises:
        SlimeError: there is no such file or folder, none that matches the pattern, or no such scheme.
    """
    scheme, colon, _ = path.partition("://")
    if colon and not path.startswith(SCHEME):
        if scheme not in PROMPT_SETS:
            todo = did_you_mean(scheme, ["pkg", *PROMPT_SETS])
            raise SlimeError(f"no plugin is installed for '{scheme}://'", where=path, todo=todo)
        return PROMPT_SETS[scheme](path)
    found = _place(path)
    if parted(found)[1]:
        return found
    if not glob.has_magic(path) or _is_there(found):
        return resolve(path)
    if not glob.glob(str(found), recursive=True):
        raise SlimeError(f"no file matches '{path}'", todo="Check the pattern.")
    return found


def parted(path: Path) -> tuple[Path, str]:
    """A path and the name behind its colon, `folder:train`; empty where the whole is a path, or its start is none."""
    head, colon, name = str(path).rpartition(":")
    if colon and head and name and not _is_there(path) and _is_there(Path(head)):
        return Path(head), name
    return path, ""


def exists(path: str) -> bool:
    """Whether `path` names something that is there; False also where its package is not installed."""
    try:
        resolve_rows(path)
    except SlimeError:
        return False
    return True


def located(path: str) -> str:
    """The same path for a process with another working directory; `pkg://` stays, hosts have packages elsewhere."""
    return path if path.startswith(SCHEME) else str(Path(path).expanduser().absolute())


def _place(path: str) -> Path:
    return _in_package(path) if path.startswith(SCHEME) else Path(path).expanduser().absolute()


def _in_package(path: str) -> Path:
    """Locate the top-level package without importing it, so that a data path never runs a plugin's code."""
    package, _, inside = path.removeprefix(SCHEME).partition("/")
    top, *below = package.split(".")
    spec = importlib.util.find_spec(top) if top else None
    if spec is None or not spec.submodule_search_locations:
        raise SlimeError(f"there is no installed package '{package}'", where=path, todo=f"Run 'pip install {package}'.")
    return Path(next(iter(spec.submodule_search_locations))).joinpath(*below, inside)


def _first_missing(path: Path) -> Path:
    return next(part for part in [*reversed(path.parents), path] if not part.exists())


def _neighbours(missing: Path, path: Path) -> str:
    names = sorted(entry.name for entry in missing.parent.iterdir() if not entry.name.startswith("."))
    if match := nearest(missing.name, names):
        return f"Did you mean '{match}'?"
    import difflib  # which nobody needs who makes no mistake

    beside = difflib.get_close_matches(missing.name, names, MAX_BESIDE, 0) if missing == path else ()
    return f"Check the path: beside it are {', '.join(beside)}." if beside else "Check the path."
