"""Math for slime: the rewards `math`, `deepscaler`, `dapo` and `arithmetic`, and a small arithmetic prompt set."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slime.contracts import RewardModel
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig


@hookimpl
def slime_rewards() -> Mapping[str, Callable[..., RewardModel]]:
    return {name: functools.partial(_reward, name) for name in ("math", "deepscaler", "dapo", "arithmetic")}


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
    from slime_rewards.math.options import OPTIONS

    return {f"reward/{name}": options for name, options in OPTIONS.items()}


def _reward(name: str, **options: Any) -> RewardModel:
    from slime_rewards.math.options import OPTIONS
    from slime_rewards.math.rewards import REWARDS

    return REWARDS[name](OPTIONS[name](**options))
