"""On-policy distillation for slime: the objective `opd`, and the estimator `none`, which leaves rewards out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slime.algo.stages import run_stages
from slime.config.schema import SlimeConfig
from slime.contracts import Objective, Source
from slime.estimator import Estimator
from slime.hookspecs import hookimpl
from slime_plugin_distillation.estimator import NoReward
from slime_plugin_distillation.opd import Opd


@hookimpl
def slime_objectives() -> Mapping[str, Callable[..., Objective]]:
    return {"opd": Opd}


@hookimpl
def slime_estimators() -> Mapping[str, Callable[..., Estimator]]:
    return {"none": NoReward}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_plugin_distillation.conf"]


@hookimpl
def slime_check(cfg: SlimeConfig) -> Sequence[str]:
    if cfg.algo.advantage == "none" and run_stages(cfg).reinforces and not run_stages(cfg).needs(Source.teacher):
        return [f"algo.advantage=none leaves algo={cfg.algo.name} nothing to learn from, as it has no teacher"]
    return []
