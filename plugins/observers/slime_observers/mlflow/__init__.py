"""MLflow for slime: the tracker `mlflow`."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slime.contracts import Tracker
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig

INSTALL = "pip install 'slime-observers[mlflow]'"


@hookimpl
def slime_trackers() -> Mapping[str, Callable[..., Tracker]]:
    return {"mlflow": _mlflow}


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    from slime_observers.mlflow.tracker import Options

    return {"tracker/mlflow": Options}


@hookimpl
def slime_check(cfg: SlimeConfig) -> Sequence[str]:
    options = cfg.observe.trackers.get("mlflow")
    if options is None:
        return []
    found = []
    if not options.get("tracking_uri") and not os.environ.get("MLFLOW_TRACKING_URI"):
        found.append("observe.trackers.mlflow.tracking_uri is not set, nor MLFLOW_TRACKING_URI: where to is not known")
    if importlib.util.find_spec("mlflow") is None:
        found.append(f"observe.trackers.mlflow needs mlflow, which is not installed: run {INSTALL}")
    return found


def _mlflow(**options: Any) -> Tracker:
    from slime_observers.mlflow.tracker import MLflow, Options

    return MLflow(Options(**options))
