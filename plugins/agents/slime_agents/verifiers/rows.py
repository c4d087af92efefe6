"""Prompt sets by an address: `verifiers://TASKSET[/heldout][/KEY:VALUE]...`."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from slime.errors import SlimeError
from slime_agents.verifiers import interpreter

SCHEME = "verifiers://"
HELD_OUT = "heldout"
EVERY = 8
"""One task of this number is held out."""
TIMEOUT_S = 600.0


def parsed(address: str) -> tuple[dict[str, Any], bool]:
    """The options of the task set, and whether its held-out tasks are meant."""
    taskset: dict[str, Any] = {}
    names: list[str] = []
    held_out = False
    for each in address.removeprefix(SCHEME).strip("/").split("/"):
        key, colon, value = each.partition(":")
        if colon:
            taskset[key] = _value(value)
        elif each == HELD_OUT:
            held_out = True
        else:
            names.append(each)
    if not any(names) or "id" in taskset:
        todo = f"Write {SCHEME}TASKSET/{HELD_OUT}, for instance."
        raise SlimeError("the address names no task set", where=address, todo=todo)
    return {"id": "/".join(names), **taskset}, held_out


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def rows_of(address: str) -> Path:
    """The file with the rows of an address, made once for each state of the interpreter's packages, and cached.

    Raises:
        SlimeError: no interpreter is named, or it cannot load the task set.
    """
    taskset, held_out = parsed(address)
    python = interpreter.named("")
    file = _cache() / f"{_digest(python, taskset)}-{HELD_OUT if held_out else 'train'}.jsonl"
    if not file.is_file():
        lines = _lines(python, taskset, address)
        chosen = [line for number, line in enumerate(lines) if (number % EVERY == EVERY - 1) == held_out]
        if not chosen:
            todo = f"The task set has {len(lines)} tasks, of which every {EVERY}th is held out."
            raise SlimeError("there are no such tasks", where=address, todo=todo)
        _keep(file, "".join(f"{line}\n" for line in chosen), address)
    return file


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slime" / "verifiers"


def _digest(python: str, taskset: dict[str, Any]) -> str:
    """A key, another one once a package is installed or removed there."""
    ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    done = subprocess.run([python, "-I", "-c", ask], capture_output=True, text=True, check=False)
    packages = Path(done.stdout.strip())
    changed = packages.stat().st_mtime_ns if done.returncode == 0 and packages.is_dir() else 0
    known = [str(packages), changed, os.environ.get("PYTHONPATH", ""), taskset]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


def _lines(python: str, taskset: dict[str, Any], address: str) -> list[str]:
    command = [*interpreter.command(python), "rows", json.dumps(taskset)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        what, todo = f"it told its tasks for longer than {TIMEOUT_S:g} s", "Write its rows to a file of your own."
        raise SlimeError(what, where=address, todo=todo) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        todo = f"See that {python} has verifiers 0.4 and the task set."
        raise SlimeError(f"verifiers cannot load it: {last}", where=address, todo=todo)
    return done.stdout.splitlines()


def _keep(file: Path, text: str, address: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".part", delete=False) as part:
            part.write(text)
        Path(part.name).replace(file)
    except OSError as error:
        todo = "Set XDG_CACHE_HOME to a folder that can be written."
        raise SlimeError(f"the rows cannot be kept: {error}", where=address, todo=todo) from error
