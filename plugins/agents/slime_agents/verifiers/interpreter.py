"""The interpreter that has verifiers, whose pins clash with those of slime; and prompt sets that it makes, by address:
`verifiers://TASKSET[/heldout][/KEY:VALUE]...`."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slime.errors import SlimeError
from slime_agents.cached_rows import cache, keep, printed, value_of

VARIABLE = "SLIME_VERIFIERS_PYTHON"


@dataclass
class VerifiersOptions:
    python: str = ""
    """The interpreter that has verifiers and the task sets; empty: the variable SLIME_VERIFIERS_PYTHON names it."""
    memory_mb: int = 4096
    """MiB that the processes of an attempt may take together."""
    environment: list[str] = field(default_factory=list)
    """Variables of the environment that they get although they look like secrets."""


def named(python: str) -> str:
    """The interpreter that `python` or the variable names. Raises SlimeError: neither does, or it is gone."""
    asked = python or os.environ.get(VARIABLE, "")
    todo = f"Set {VARIABLE}=VENV/bin/python, of an environment with verifiers 0.4 and the task sets."
    if not asked:
        raise SlimeError("no interpreter with verifiers is named", where=VARIABLE, todo=todo)
    found = shutil.which(asked)
    if not found:
        raise SlimeError(f"there is no interpreter {asked}", where=VARIABLE, todo=todo)
    return str(Path(found).absolute())


def command(python: str) -> list[str]:
    """The command of `player.py`, whose folder is not on the path: modules of this package would hide others."""
    return [python, "-P", str(Path(__file__).with_name("player.py"))]


SCHEME = "verifiers://"
HELD_OUT = "heldout"
EVERY = 8
"""One task of this number is held out."""


def parsed(address: str) -> tuple[dict[str, Any], bool]:
    """The options of the task set, and whether its held-out tasks are meant."""
    taskset: dict[str, Any] = {}
    names: list[str] = []
    held_out = False
    for each in address.removeprefix(SCHEME).strip("/").split("/"):
        key, colon, value = each.partition(":")
        if colon:
            taskset[key] = value_of(value)
        elif each == HELD_OUT:
            held_out = True
        else:
            names.append(each)
    if not any(names) or "id" in taskset:
        todo = f"Write {SCHEME}TASKSET/{HELD_OUT}, for instance."
        raise SlimeError("the address names no task set", where=address, todo=todo)
    return {"id": "/".join(names), **taskset}, held_out


def rows_of(address: str) -> Path:
    """The file with the rows of an address, made once for each state of the interpreter's packages, and cached.

    Raises:
        SlimeError: no interpreter is named, or it cannot load the task set.
    """
    taskset, held_out = parsed(address)
    python = named("")
    file = cache() / "verifiers" / f"{_digest(python, taskset)}-{HELD_OUT if held_out else 'train'}.jsonl"
    if not file.is_file():
        asked = [*command(python), "rows", json.dumps(taskset)]
        told, fault = printed(asked, address, "Write its rows to a file of your own.")
        if fault:
            todo = f"See that {python} has verifiers 0.4 and the task set."
            raise SlimeError(f"verifiers cannot load it: {fault}", where=address, todo=todo)
        lines = told.splitlines()
        chosen = [line for number, line in enumerate(lines) if (number % EVERY == EVERY - 1) == held_out]
        if not chosen:
            todo = f"The task set has {len(lines)} tasks, of which every {EVERY}th is held out."
            raise SlimeError("there are no such tasks", where=address, todo=todo)
        keep(file, "".join(f"{line}\n" for line in chosen), address)
    return file


def _digest(python: str, taskset: dict[str, Any]) -> str:
    """A key, another one once a package is installed or removed there."""
    ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    done = subprocess.run([python, "-I", "-c", ask], capture_output=True, text=True, check=False)
    packages = Path(done.stdout.strip())
    changed = packages.stat().st_mtime_ns if done.returncode == 0 and packages.is_dir() else 0
    known = [str(packages), changed, os.environ.get("PYTHONPATH", ""), taskset]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]
