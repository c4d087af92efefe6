"""The plugin: objectives and estimators beside GRPO's, and what a plan says of a teacher."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from slime.estimator import Estimator
from slime.hookspecs import hookimpl
from slime.objective import Objective, Source, TrainsOn
from slime_algorithms.distillation.opd import NoReward, Opd
from slime_algorithms.policy_losses.estimators import ReinforcePp, ReinforcePpBaseline, Rloo
from slime_algorithms.policy_losses.objectives import Cispo, Dppo, Gspo, Sapo
from slime_algorithms.ppo.gae import Gae
from slime_algorithms.preferences.dpo import Dpo
from slime_algorithms.preferences.reward_model import RewardModel

if TYPE_CHECKING:
    from slime.config.schema import AlgoConfig, ModelConfig, RolloutConfig
    from slime.errors import SlimeError
    from slime.run_dir import RunDir
    from slime.topology.topology import Topology


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
    return {"teacher": require_teacher}


@hookimpl
def slime_check(algo: AlgoConfig, model: ModelConfig, rollout: RolloutConfig) -> Sequence[str | SlimeError]:
    """Why a run cannot learn from its teacher, or has none where it needs one."""
    from slime.algo.stages import PenalisesRewards, objective_of
    from slime_algorithms.distillation.teacher import group_problems, teacher_problems, top_problems

    objective, temperature = objective_of(algo), rollout.sampling.temperature
    opd = objective if isinstance(objective, Opd) else None
    if algo.advantage == "none" and objective.trains_on is TrainsOn.rollouts and not opd:
        return [f"algo.advantage=none leaves algo={algo.name} nothing to learn from, as it has no teacher"]
    if algo.advantage == "none" and isinstance(objective, PenalisesRewards) and objective.penalised_by:
        return ["algo.kl_in=reward does nothing with algo.advantage=none, which leaves rewards out: set it to loss"]
    if opd and opd.is_served and temperature != 1:
        key = "teacher_url" if opd.teacher_url else "teacher_engines"
        what = f"algo.options.{key} gives log-probs at temperature 1 alone, so set rollout.sampling.temperature=1"
        return [f"{what} (it is {temperature:g}), or have the trainers hold the teacher (algo.teacher.path)"]
    found = [*top_problems(model, opd.teacher_top_k)] if opd and opd.teacher_top_k else []
    if opd and opd.teacher_engines:
        return [*found, *group_problems(model, rollout, opd.teacher_engines)]
    has_teacher = any(column.source is Source.teacher for column in objective.needs)
    return [*found, *(teacher_problems(model, algo) if has_teacher else ())]


def require_teacher(topology: Topology, run: RunDir, nodes: Collection[str], writes: bool) -> None:
    """Before anything of a run that trains starts: its teacher is served, and has the model's tokens."""
    from slime.algo.stages import objective_of
    from slime.config.paths import resolve

    model, objective = topology.config.model, objective_of(topology.config.algo)
    if writes and isinstance(objective, Opd) and objective.teacher_url:
        from slime_algorithms.distillation.served import Server

        server = Server(objective.teacher_url, objective.teacher_key_env)
        server.require_tokens_of(resolve(model.tokenizer or model.path))
