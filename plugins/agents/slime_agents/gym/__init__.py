"""Environments for slime: a class of yours with `reset` and `step`, and the generators of reasoning-gym."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime.contracts import Program, RewardModel
from slime.errors import SlimeError
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig


@hookimpl
def slime_programs() -> Mapping[str, Callable[..., Program]]:
    return {"gym": _gym}


@hookimpl
def slime_rewards() -> Mapping[str, Callable[..., RewardModel]]:
    return {"reasoning-gym": _reasoning_gym}


@hookimpl
def slime_prompt_sets() -> Mapping[str, Callable[[str], Path]]:
    return {"reasoning-gym": _rows}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_agents.gym.conf"]


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    from slime_agents.gym.options import GymOptions, ReasoningGymOptions

    return {"program/gym": GymOptions, "reward/reasoning-gym": ReasoningGymOptions}


@hookimpl
def slime_check(cfg: SlimeConfig) -> Sequence[SlimeError]:
    """The environment must be there, and have its methods, before anything starts."""
    program = cfg.rollout.program
    if program.name != "gym":
        return []
    from slime_agents.gym.program import check_arguments

    try:
        check_arguments(str(program.options.get("path", "")), program.options.get("arguments") or {})
    except SlimeError as problem:
        return [problem]
    if program.options.get("max_turns", 1) < 1:
        return [SlimeError("must be at least 1", where="rollout.program.options.max_turns", todo="Raise it.")]
    return []


def _gym(**options: Any) -> Program:
    from slime_agents.gym.options import GymOptions
    from slime_agents.gym.program import Gym

    return Gym(GymOptions(**options))


def _reasoning_gym(**options: Any) -> RewardModel:
    from slime_agents.gym.options import ReasoningGymOptions
    from slime_agents.gym.verdicts import ReasoningGymReward

    return ReasoningGymReward(ReasoningGymOptions(**options))


def _rows(address: str) -> Path:
    from slime_agents.gym.rows import rows_of

    return rows_of(address)
