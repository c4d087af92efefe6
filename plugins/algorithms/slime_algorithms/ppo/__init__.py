"""Proximal policy optimisation with a critic for slime: the estimator `gae`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slime.estimator import Estimator
from slime.hookspecs import hookimpl
from slime_algorithms.ppo.gae import Gae


@hookimpl
def slime_estimators() -> Mapping[str, Callable[..., Estimator]]:
    return {"gae": Gae}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_algorithms.ppo.conf"]
