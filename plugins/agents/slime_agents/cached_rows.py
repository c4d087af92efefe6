"""Rows that another process makes for an address, kept in the user's cache."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slime.errors import SlimeError

TIMEOUT_S = 600.0


def value_of(text: str) -> Any:
    """An option of an address: JSON, or else text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slime"


def printed(
    command: Sequence[str], address: str, if_slow: str, environment: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """The output of a command, and the last line of its errors where it fails.

    Args:
        if_slow: what to do if it takes longer than `TIMEOUT_S`.

    Raises:
        SlimeError: it does.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise SlimeError(f"it took longer than {TIMEOUT_S:g} s", where=address, todo=if_slow) from error
    last = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
    return done.stdout, last if done.returncode else ""


def keep(file: Path, text: str, address: str) -> None:
    """Write the rows whole or not at all. Raises SlimeError: they cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".part", delete=False) as part:
            part.write(text)
        os.chmod(part.name, 0o644)
        Path(part.name).replace(file)
    except OSError as error:
        todo = "Set XDG_CACHE_HOME to a folder that can be written."
        raise SlimeError(f"the rows cannot be kept: {error}", where=address, todo=todo) from error
