"""Rewards of general use: a function of yours, a route by a column, a judge, a reward model, a server, and likeness."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from slime.contracts import RewardModel
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig
    from slime.errors import SlimeError


@hookimpl
def slime_rewards() -> Mapping[str, Callable[..., RewardModel]]:
    from slime_rewards.general.choice import GpqaReward
    from slime_rewards.general.constraints import ConstraintsReward
    from slime_rewards.general.function import FunctionReward
    from slime_rewards.general.judge import JudgeReward
    from slime_rewards.general.remote import RemoteReward
    from slime_rewards.general.reward_model import ModelReward
    from slime_rewards.general.route import RouteReward
    from slime_rewards.general.text import F1Reward

    return {
        "constraints": ConstraintsReward,
        "f1": F1Reward,
        "function": FunctionReward,
        "gpqa": GpqaReward,
        "judge": JudgeReward,
        "remote": RemoteReward,
        "reward-model": ModelReward,
        "route": RouteReward,
    }


@hookimpl
def slime_check(cfg: SlimeConfig) -> Sequence[str | SlimeError]:
    from slime_rewards.general.asked import engine_problems, problems

    return [*problems(cfg.reward.name, cfg.reward.options), *engine_problems(cfg)]


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_rewards.general.conf"]
