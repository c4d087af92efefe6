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
    from slime_plugin_rewards.choice import GpqaReward
    from slime_plugin_rewards.constraints import ConstraintsReward
    from slime_plugin_rewards.function import FunctionReward
    from slime_plugin_rewards.judge import JudgeReward
    from slime_plugin_rewards.remote import RemoteReward
    from slime_plugin_rewards.reward_model import ModelReward
    from slime_plugin_rewards.route import RouteReward
    from slime_plugin_rewards.text import F1Reward

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
    from slime_plugin_rewards.asked import engine_problems
    from slime_plugin_rewards.checks import problems

    return [*problems(cfg.reward.name, cfg.reward.options), *engine_problems(cfg)]


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_plugin_rewards.conf"]
