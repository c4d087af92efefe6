"""Other values for keys of a config: as keys, as they are typed, and as a config that has them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from slime.config.keys import value_of
from slime.config.schema import SlimeConfig

FOLLOWING = ("sequence_parallel", "cp_comm_type", "overlap_p2p_comm", "batch_p2p_comm")
"""Fields of Megatron-core that `derive` fills in from the sizes."""

Changes = Mapping[str, Any]
"""Dotted keys and their values."""


def changed(cfg: SlimeConfig, changes: Changes) -> SlimeConfig:
    """A config with other values, as it was before `derive`; the given one stays as it is."""
    found = copy.deepcopy(cfg)
    for key in FOLLOWING:
        found.train.megatron.pop(key, None)
    set_values(found, changes)
    return found


def set_values(cfg: SlimeConfig, changes: Changes) -> None:
    for key, value in changes.items():
        home, _, name = key.rpartition(".")
        holder = value_of(cfg, home)
        holder.__setitem__(name, value) if isinstance(holder, dict) else setattr(holder, name, value)


def in_words(changes: Changes) -> list[str]:
    return [f"{key}={_in_yaml(value)}" for key, value in changes.items()]


def _in_yaml(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
