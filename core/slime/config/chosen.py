"""What a run chooses by name among the installed plugins, with its options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from slime.config.declare import SHARE, Bound, key


@dataclass
class RewardConfig:
    name: str = MISSING
    """Installed reward (`slime plugins`)."""
    options: dict[str, Any] = field(default_factory=dict)
    """The reward's own keys, typed by the schema its plugin registers."""
    num_workers: int = key(1, Bound(1, 4096), may_change=True)
    """Worker processes that score samples."""
    timeout_s: float = key(10.0, Bound(0.001, 10**7), may_change=True)
    """Wall-clock seconds a sample may take, or a group that is judged together; then its worker is killed and the
    verdict is `timeout`."""
    memory_mb: int = key(2048, Bound(16, 10**7), may_change=True)
    """MiB by which a worker, all it starts and its files in /dev/shm and TMPDIR may grow; beyond: `error`."""
    environment: list[str] = field(default_factory=list)
    """Variables of the driver's environment that rewards get although they look like secrets, OPENAI_API_KEY for
    instance: those with KEY, TOKEN, PASSWORD and the like in their name are withheld."""
    max_failed_share: float = key(0.1, SHARE, may_change=True)
    """Share of a step's samples without a value (invalid, timeout, error) above which the run stops."""


@dataclass
class FilterConfig:
    name: str = "none"
    """Installed filter (`slime plugins`); none keeps every group that has at least two values, or its only
    one where `rollout.samples_per_prompt` is 1. A group of equal rewards
    teaches nothing and yet counts in `algo.loss_mean`: `rollout/zero_variance_share` tells how many there are."""
    options: dict[str, Any] = field(default_factory=dict)
    """The filter's own keys, typed by the schema its plugin registers."""
    then: dict[str, Any] = key(make=dict, known_as="reward_model.overlong_buffer")
    """Filters that are asked next, one after another as they stand here, of the groups that those before keep: name ->
    their options, or true. One that changes rewards does so before those behind it are asked."""


@dataclass
class BufferConfig:
    name: str = "fifo"
    """Installed buffer policy (`slime plugins`)."""
    options: dict[str, Any] = field(default_factory=dict)
    """The policy's own keys, typed by the schema its plugin registers."""
