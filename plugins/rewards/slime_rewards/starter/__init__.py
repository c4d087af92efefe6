"""First tasks for small models: word problems, countdown, text to reverse, and GSM8K."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slime.contracts import RewardModel
from slime.hookspecs import hookimpl


@hookimpl
def slime_rewards() -> Mapping[str, Callable[..., RewardModel]]:
    from slime_rewards.starter.rewards import CountdownReward, Gsm8kReward, ReverseTextReward

    return {"countdown": CountdownReward, "gsm8k": Gsm8kReward, "reverse-text": ReverseTextReward}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_rewards.starter.conf"]
