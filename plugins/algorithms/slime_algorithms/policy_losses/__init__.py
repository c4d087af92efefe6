"""Policy optimisation beside GRPO for slime: the objectives `gspo`, `cispo`, `sapo` and `dppo`, and the estimators
`rloo`, `reinforce_pp` and `reinforce_pp_baseline`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slime.estimator import Estimator
from slime.hookspecs import hookimpl
from slime.objective import Objective
from slime_algorithms.policy_losses.estimators import ReinforcePp, ReinforcePpBaseline, Rloo
from slime_algorithms.policy_losses.objectives import Cispo, Dppo, Gspo, Sapo


@hookimpl
def slime_objectives() -> Mapping[str, Callable[..., Objective]]:
    return {"gspo": Gspo, "cispo": Cispo, "sapo": Sapo, "dppo": Dppo}


@hookimpl
def slime_estimators() -> Mapping[str, Callable[..., Estimator]]:
    return {"rloo": Rloo, "reinforce_pp": ReinforcePp, "reinforce_pp_baseline": ReinforcePpBaseline}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_algorithms.policy_losses.conf"]
