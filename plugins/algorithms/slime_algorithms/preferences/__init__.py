"""Learning from pairs of a chosen and a rejected answer for slime: the objectives `dpo` and `reward_model`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slime.hookspecs import hookimpl
from slime.objective import Objective
from slime_algorithms.preferences.dpo import Dpo
from slime_algorithms.preferences.reward_model import RewardModel


@hookimpl
def slime_objectives() -> Mapping[str, Callable[..., Objective]]:
    return {"dpo": Dpo, "reward_model": RewardModel}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_algorithms.preferences.conf"]
