"""A layout as keys over a config."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime.config.schema import SlimeConfig
from slime.errors import SlimeError
from slime.plan.memory import MemoryPlan
from slime.topology.layout import Grid

FOLLOWING = ("sequence_parallel", "cp_comm_type", "overlap_p2p_comm", "batch_p2p_comm")
"""Fields of Megatron-core that `derive` fills in from the sizes."""

Changes = Mapping[str, Any]
"""Dotted keys and their values."""


@dataclass(frozen=True)
class Candidate:
    """A layout that fits, unless it is the given one.

    Attributes:
        changes: of the given config; none if it is that one.
        seconds: of a rollout, by part.
        problems: of the given one, if it cannot be.
    """

    changes: Changes
    cfg: SlimeConfig
    grid: Grid
    seconds: Mapping[str, float]
    memory: MemoryPlan
    problems: Sequence[SlimeError] = ()

    @property
    def is_given(self) -> bool:
        return not self.changes

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def words(self) -> list[str]:
        """What to type behind the given words."""
        return [f"{key}={_in_yaml(value)}" for key, value in self.changes.items()]


def changed(cfg: SlimeConfig, changes: Changes) -> SlimeConfig:
    """A config with other values, as it was before `derive`; the given one stays as it is."""
    rollout, train = cfg.rollout, cfg.train
    megatron = {key: value for key, value in train.megatron.items() if key not in FOLLOWING}
    engines = {name: dataclasses.replace(group) for name, group in rollout.engines.items()}
    found = dataclasses.replace(
        cfg,
        train=dataclasses.replace(train, megatron=megatron, optimizer=dict(train.optimizer)),
        rollout=dataclasses.replace(rollout, sglang=dict(rollout.sglang), engines=engines),
    )
    for key, value in changes.items():
        *path, name = key.split(".")
        holder: Any = found
        for part in path:
            holder = holder[part] if isinstance(holder, dict) else getattr(holder, part)
        holder.__setitem__(name, value) if isinstance(holder, dict) else setattr(holder, name, value)
    return found


def _in_yaml(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
