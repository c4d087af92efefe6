"""On-policy distillation for slime: the objective `opd`, and the estimator `none`, which leaves rewards out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from slime.estimator import Estimator
from slime.hookspecs import hookimpl
from slime.objective import Objective
from slime_algorithms.distillation.opd import NoReward, Opd

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig
    from slime.errors import SlimeError
    from slime.run_dir import RunDir
    from slime.topology.topology import Topology


def require_teacher(topology: Topology, run: RunDir, nodes: Collection[str], writes: bool) -> None:
    """Before anything of a run that trains starts: its teacher is served, and has the model's tokens."""
    from slime.algo.stages import run_stages
    from slime.config.paths import resolve
    from slime_algorithms.distillation.served import Server

    model, objective = topology.config.model, run_stages(topology.config).all[-1].objective
    if writes and isinstance(objective, Opd) and objective.teacher_url:
        server = Server(objective.teacher_url, objective.teacher_key_env)
        server.require_tokens_of(resolve(model.tokenizer or model.path))


@hookimpl
def slime_objectives() -> Mapping[str, Callable[..., Objective]]:
    return {"opd": Opd}


@hookimpl
def slime_estimators() -> Mapping[str, Callable[..., Estimator]]:
    return {"none": NoReward}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_algorithms.distillation.conf"]


@hookimpl
def slime_preflights() -> Mapping[str, Callable[..., None]]:
    return {"teacher": require_teacher}


@hookimpl
def slime_check(cfg: SlimeConfig) -> Sequence[str | SlimeError]:
    from slime.algo.stages import run_stages
    from slime_algorithms.distillation.teacher import group_problems, teacher_problems, top_problems

    chosen, temperature = run_stages(cfg).all[-1], cfg.rollout.sampling.temperature
    if cfg.algo.advantage == "none" and chosen.reinforces and not isinstance(chosen.objective, Opd):
        return [f"algo.advantage=none leaves algo={cfg.algo.name} nothing to learn from, as it has no teacher"]
    if cfg.algo.advantage == "none" and chosen.penalised_by:
        return ["algo.kl_in=reward does nothing with algo.advantage=none, which leaves rewards out: set it to loss"]
    if isinstance(chosen.objective, Opd) and chosen.objective.is_served and temperature != 1:
        key = "teacher_url" if chosen.objective.teacher_url else "teacher_engines"
        what = f"algo.options.{key} gives log-probs at temperature 1 alone, so set rollout.sampling.temperature=1"
        return [f"{what} (it is {temperature:g}), or have the trainers hold the teacher (algo.teacher.path)"]
    found: list[str | SlimeError] = []
    if isinstance(chosen.objective, Opd) and chosen.objective.teacher_top_k:
        found += top_problems(cfg, chosen.objective.teacher_top_k)
    if isinstance(chosen.objective, Opd) and chosen.objective.teacher_engines:
        return [*found, *group_problems(cfg, chosen.objective.teacher_engines)]
    return [*found, *teacher_problems(cfg)]
