"""Rules about named sets of prompts, `data.sets` and `eval.sets`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slime.config.schema import DataConfig, EvalConfig
from slime.errors import SlimeError

NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
"""Part of a metric's name, of a key and of prompts' ids."""
TAKEN = ("main", "reward_part", "notes")
"""Parts of metrics' names that mean something else."""


def set_problems(data: DataConfig, evaluation: EvalConfig) -> Iterator[SlimeError]:
    """Names that cannot be, and options of nothing."""
    for home, own in {**data.named(), **evaluation.named()}.items():
        name = home.rpartition(".")[2]
        if not NAME.fullmatch(name) or name in TAKEN:
            todo = "Use lower-case letters, digits, - and _; not " + ", ".join(TAKEN) + "."
            yield SlimeError(f"'{name}' cannot be the name of a set", where=home, todo=todo)
        for kind in ("reward", "program"):
            if getattr(own, f"{kind}_options") and getattr(own, kind) is None:
                what, where = f"does nothing without {home}.{kind}", f"{home}.{kind}_options"
                yield SlimeError(what, where=where, todo="Set that too, or remove this.")
