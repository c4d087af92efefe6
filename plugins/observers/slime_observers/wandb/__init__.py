"""Weights & Biases for slime: the tracker `wandb`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slime.contracts import Tracker
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig

INSTALL = "pip install 'slime-observers[wandb]'"


@hookimpl
def slime_trackers() -> Mapping[str, Callable[..., Tracker]]:
    return {"wandb": _wandb}


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    from slime_observers.wandb.tracker import Options

    return {"tracker/wandb": Options}


@hookimpl
def slime_check(cfg: SlimeConfig) -> Sequence[str]:
    if "wandb" in cfg.observe.trackers and importlib.util.find_spec("wandb") is None:
        return [f"observe.trackers.wandb needs wandb, which is not installed: run {INSTALL}"]
    return []


def _wandb(**options: Any) -> Tracker:
    from slime_observers.wandb.tracker import Options, WeightsAndBiases

    return WeightsAndBiases(Options(**options))
