"""Math for slime: the rewards `math`, `deepscaler`, `dapo` and `arithmetic`, and a small arithmetic prompt set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slime.contracts import RewardModel
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig


@hookimpl
def slime_rewards() -> Mapping[str, Callable[..., RewardModel]]:
    return {"math": _math, "deepscaler": _deepscaler, "dapo": _dapo, "arithmetic": _arithmetic}


@hookimpl
def slime_check(cfg: SlimeConfig) -> Sequence[str]:
    names = {cfg.reward.name, *(each.reward for each in {**cfg.data.named(), **cfg.eval.named()}.values())}
    if names.isdisjoint(slime_rewards()):
        return []
    from slime_rewards.math.labels import label_problems

    return list(label_problems(cfg, slime_rewards()))


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_rewards.math.conf"]


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    from slime_rewards.math.options import ArithmeticOptions, DapoOptions, DeepscalerOptions, MathOptions

    return {
        "reward/math": MathOptions,
        "reward/deepscaler": DeepscalerOptions,
        "reward/dapo": DapoOptions,
        "reward/arithmetic": ArithmeticOptions,
    }


def _math(**options: Any) -> RewardModel:
    from slime_rewards.math.options import MathOptions
    from slime_rewards.math.rewards import MathReward

    return MathReward(MathOptions(**options))


def _deepscaler(**options: Any) -> RewardModel:
    from slime_rewards.math.options import DeepscalerOptions
    from slime_rewards.math.rewards import DeepscalerReward

    return DeepscalerReward(DeepscalerOptions(**options))


def _dapo(**options: Any) -> RewardModel:
    from slime_rewards.math.options import DapoOptions
    from slime_rewards.math.rewards import DapoReward

    return DapoReward(DapoOptions(**options))


def _arithmetic(**options: Any) -> RewardModel:
    from slime_rewards.math.options import ArithmeticOptions
    from slime_rewards.math.rewards import ArithmeticReward

    return ArithmeticReward(ArithmeticOptions(**options))
