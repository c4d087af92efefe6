"""The reward `code` for slime, Python in the answer run against tests, and the tool `python`: both in a sandbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from slime.contracts import RewardModel
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig
    from slime.sizes.estimate import PlanPart
    from slime.sizes.model import ModelSizes


@hookimpl
def slime_rewards() -> Mapping[str, Callable[..., RewardModel]]:
    from slime_rewards.code.reward import CodeReward

    return {"code": CodeReward}


@hookimpl
def slime_check(cfg: SlimeConfig) -> Sequence[str]:
    """Nothing is run where the machine lacks what confines it, nor without tests."""
    from slime_rewards.code.uses import label_problems, sandbox_problems

    return [*sandbox_problems(cfg), *label_problems(cfg)]


@hookimpl
def slime_plan_parts() -> Mapping[str, Callable[..., PlanPart]]:
    return {"sandbox": _sandbox}


def _sandbox(sizes: ModelSizes) -> PlanPart:
    from slime_rewards.code.uses import SandboxPart

    return SandboxPart(sizes.topology.config)
