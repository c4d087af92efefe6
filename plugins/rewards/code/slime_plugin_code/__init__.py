"""The reward `code` for slime: Python in the answer, run against tests in a sandbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from slime.contracts import RewardModel
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig


@hookimpl
def slime_rewards() -> Mapping[str, Callable[..., RewardModel]]:
    from slime_plugin_code.reward import CodeReward

    return {"code": CodeReward}


@hookimpl
def slime_check(cfg: SlimeConfig) -> Sequence[str]:
    """Nothing is run where the machine lacks what confines it."""
    if cfg.reward.name != "code" or cfg.reward.options.get("unconfined"):
        return []
    from slime_plugin_code.sandbox import missing

    lacks = missing()
    return [f"reward.name=code: the sandbox cannot be had here: {lacks}"] if lacks else []
