"""The plugin: rewards, their options and tasks, and what a plan says of the sandbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from slime.contracts import RewardModel
from slime.hookspecs import hookimpl, later

if TYPE_CHECKING:
    from slime.config.schema import AlgoConfig, DataConfig, EvalConfig, RewardConfig, RolloutConfig
    from slime.errors import SlimeError
    from slime.sizes.estimate import PlanPart


@hookimpl
def slime_rewards() -> Mapping[str, Callable[..., RewardModel]]:
    from slime_rewards.code.reward import CodeReward
    from slime_rewards.general.function import FunctionReward
    from slime_rewards.general.ifeval import ConstraintsReward
    from slime_rewards.general.judge import JudgeReward
    from slime_rewards.general.remote import RemoteReward
    from slime_rewards.general.reward_model import ModelReward
    from slime_rewards.general.route import RouteReward
    from slime_rewards.general.text import F1Reward, GpqaReward
    from slime_rewards.general.weighted import SumReward
    from slime_rewards.math.rewards import ArithmeticReward, DapoReward, DeepscalerReward, MathReward
    from slime_rewards.starter.rewards import CountdownReward, Gsm8kReward, ReverseTextReward

    return {
        "arithmetic": ArithmeticReward,
        "code": CodeReward,
        "constraints": ConstraintsReward,
        "countdown": CountdownReward,
        "dapo": DapoReward,
        "deepscaler": DeepscalerReward,
        "f1": F1Reward,
        "function": FunctionReward,
        "gpqa": GpqaReward,
        "gsm8k": Gsm8kReward,
        "judge": JudgeReward,
        "math": MathReward,
        "remote": RemoteReward,
        "reverse-text": ReverseTextReward,
        "reward-model": ModelReward,
        "route": RouteReward,
        "sum": SumReward,
    }


@hookimpl
def slime_check(
    algo: AlgoConfig, rollout: RolloutConfig, data: DataConfig, eval: EvalConfig, reward: RewardConfig
) -> Sequence[str | SlimeError]:
    """Labels must be what their rewards read, and what a reward asks or runs in must be there."""
    from slime.topology.engines import generates
    from slime_rewards.code.uses import label_problems as code_labels
    from slime_rewards.code.uses import sandbox_problems
    from slime_rewards.general.asked import engine_problems, problems
    from slime_rewards.labels import judged_sets
    from slime_rewards.math.labels import label_problems as math_labels

    judged, sets = [*judged_sets(algo, data, eval, reward.name)], {**data.named(), **eval.named()}
    found: list[str | SlimeError] = [*sandbox_problems(reward, rollout.program, sets), *code_labels(judged)]
    found += problems(reward.name, reward.options)
    for home, own in sets.items():
        found += problems(own.reward or "", own.reward_options, f"{home}.reward_options")
    found += math_labels(judged)
    return [*found, *(engine_problems(reward, data, eval, rollout.engines) if generates(algo, eval) else ())]


@hookimpl
def slime_plan_parts() -> Mapping[str, Callable[..., PlanPart]]:
    return {"sandbox": later("slime_rewards.code.uses:SandboxPart")}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return [f"pkg://slime_rewards.{room}.conf" for room in ("general", "math", "starter")]
