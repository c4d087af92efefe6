"""The interpreter that has verifiers: the pins of that package clash with those of slime."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from slime.errors import SlimeError

VARIABLE = "SLIME_VERIFIERS_PYTHON"


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
