"""The section `observe` of `slime.config.schema`: what is kept and shown of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ObserveConfig:
    trackers: dict[str, Any] = field(default_factory=lambda: {"tensorboard": {}})
    """What shows the metrics beside metrics.jsonl (`slime plugins`): a tracker's name, true or false, or
    `<name>.<option>=<value>` of its own options."""
    samples_mb: float = 2.0
    """Megabytes a step, and an evaluation, of what the model answered, in `samples/`; 0 keeps none."""
    logprob_alarm: float | None = None
    """Mean absolute difference (nats a token) between the engine's and the trainer's log-probs of the
    same tokens above which the run stops and says why; 0 only measures. Empty: 0.05, or 0.2 under `rollout.fp8`
    (docs/one-step.md)."""
