"""What tells a run from others of its model and cluster: the keys typed that decide what is learned."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatch
from pathlib import PurePath
from typing import Any

from slime.config.keys import may_change, own_keys

MAX_LETTERS = 48
"""Letters of all keys together: a file system allows 255, and a name is read in tables."""
NAMED_BY = ("model", "cluster")
"""Groups whose option is in every default name."""
LEARNING = (
    "train.optimizer.*",
    "train.lr_*",
    "train.routing_replay",
    "rollout.over_sampling",
    "rollout.surplus",
    "rollout.max_staleness",
    "rollout.publish",
)
"""Keys that a resumed run may change, and that make another run of a new one."""


def variant(typed: Mapping[str, Any], usual: Collection[str]) -> str:
    """`-ppo-lr_0.001`, the same in whatever order they were typed; empty where all is as the recipe says.

    Args:
        typed: key or group -> value, of the command line.
        usual: groups whose option is the one that the model has anyway.
    """
    free = [*may_change()]
    kept = {name: value for name, value in sorted(typed.items()) if _tells(name, free) and name not in usual}
    known = [name for name in own_keys() if _tells(name, free)] if kept else []
    parts = [_part(name, value, known) for name, value in kept.items()]
    told = "".join(f"-{text}" for text, _ in parts)
    if not told or (all(is_exact for _, is_exact in parts) and len(told) <= MAX_LETTERS):
        return told
    # What is cut, or told by a part of its path, must not meet another of the same letters in one folder.
    digest = hashlib.sha256(repr([*kept.items()]).encode()).hexdigest()
    return f"{told[:MAX_LETTERS].rstrip('-._')}-{digest[:6]}"


def _tells(name: str, free: Collection[str]) -> bool:
    if any(fnmatch(name, pattern) for pattern in LEARNING):
        return True
    return name not in NAMED_BY and not any(fnmatch(name, pattern) for pattern in free)


def _part(name: str, value: Any, known: Collection[str]) -> tuple[str, bool]:
    """Its letters in the name, and whether no other key or value has the same."""
    if "." not in name:  # a group, whose options have names of their own
        return letters(str(value)), letters(str(value)) == str(value)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if "/" in text:
        return f"{letters(_short(name, known))}_{letters(PurePath(text).stem)}", False
    return f"{letters(_short(name, known))}_{letters(text)}", letters(text) == text


def _short(name: str, known: Collection[str]) -> str:
    """The last words of a key that no other key ends with."""
    words = name.split(".")
    for first in range(len(words) - 1, 0, -1):
        short = ".".join(words[first:])
        if not any(f".{other}".endswith(f".{short}") for other in known if other != name):
            return short
    return name


def letters(text: str) -> str:
    """What of a text a name may have."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-.")
