"""The plugin: objectives and estimators beside GRPO's, and what a plan says of a teacher."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from slime.estimator import Estimator
from slime.hookspecs import hookimpl, later
from slime.objective import Objective
from slime_algorithms.distillation.opd import NoReward, Opd
from slime_algorithms.policy_losses.estimators import ReinforcePp, ReinforcePpBaseline, Rloo
from slime_algorithms.policy_losses.objectives import Cispo, Dppo, Gspo, Sapo
from slime_algorithms.ppo.gae import Gae
from slime_algorithms.preferences.dpo import Dpo
from slime_algorithms.preferences.reward_model import RewardModel

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig
    from slime.errors import SlimeError


@hookimpl
def slime_objectives() -> Mapping[str, Callable[..., Objective]]:
    return {
        "opd": Opd,
        "gspo": Gspo,
        "cispo": Cispo,
        "sapo": Sapo,
        "dppo": Dppo,
        "dpo": Dpo,
        "reward_model": RewardModel,
    }


@hookimpl
def slime_estimators() -> Mapping[str, Callable[..., Estimator]]:
    return {
        "none": NoReward,
        "rloo": Rloo,
        "reinforce_pp": ReinforcePp,
        "reinforce_pp_baseline": ReinforcePpBaseline,
        "gae": Gae,
    }


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return [f"pkg://slime_algorithms.{room}.conf" for room in ("distillation", "policy_losses", "ppo", "preferences")]


@hookimpl
def slime_preflights() -> Mapping[str, Callable[..., None]]:
    return {"teacher": later("slime_algorithms.distillation.served:require_teacher")}


@hookimpl
def slime_check(cfg: SlimeConfig) -> Sequence[str | SlimeError]:
    from slime_algorithms.distillation.teacher import problems

    return problems(cfg)
