"""The section `observe` of `slime.config.schema`: what is kept and shown of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slime.config.declare import STEPS, Bound, key


@dataclass
class ObserveConfig:
    trackers: dict[str, Any] = key(make=dict, known_as="trainer.logger report_to use_wandb")
    """What shows the metrics beside metrics.jsonl (`slime plugins`): a tracker's name, true or false, or
    `<name>.<option>=<value>` of its own options. `tensorboard` is on where `slime-observers` is installed."""
    samples_mb: float = key(200.0, Bound(0, 10**7))
    """Megabytes of what the model answered that `samples/` keeps of the whole run. A step, or an evaluation, takes a
    hundredth of it at most; as the run gets longer, files between the first and the newest go. 0 keeps none."""
    zero_variance_steps: int = key(20, STEPS)
    """Steps in a row in which every group has equal rewards (`rollout/zero_variance_share` is 1), after which the run
    saves a checkpoint and stops, because nothing is learnt from them; 0 never. A run that continues counts again."""
    logprob_alarm: float | None = key(None, Bound(0, 100))
    """Mean absolute difference (nats a token) between the engine's and the trainer's log-probs of the
    same tokens above which the run stops and says why; 0 only measures. Empty: 0.05, or 0.2 under `rollout.fp8`
    (docs/one-step.md)."""
    routing: bool = key(False, may_change=True)
    """Engines record which experts they choose, although the trainer chooses for itself, so that the alarm says what it
    costs that both choose differently (docs/routing-replay.md). With `train.routing_replay` they record it anyway."""
