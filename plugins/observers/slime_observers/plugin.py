"""The plugin: what a run prints and keeps, a watch over its learning, and trackers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from slime.contracts import Tracker
from slime.events import Subscriber
from slime.hookspecs import hookimpl, later
from slime_observers.mlflow.tracker import MLflow
from slime_observers.tensorboard.tracker import TensorBoard
from slime_observers.trackio.tracker import Trackio
from slime_observers.wandb.tracker import WeightsAndBiases

if TYPE_CHECKING:
    from slime.config.schema import ObserveConfig


@hookimpl
def slime_subscribers() -> Mapping[str, Callable[..., Subscriber]]:
    return {
        "card": later("slime_observers.card.card:ModelCard"),
        "console": later("slime_observers.console.run:Console", every_session=True),
        "learning": later("slime_observers.learning.watch:of_run", every_session=True),
        "prometheus": later("slime_observers.prometheus:of_run"),
        "samples": later("slime_observers.samples.log:of_run", every_session=True),
        "groups": later("slime_observers.samples.groups:of_run"),
        "trackers": later("slime_observers.trackers.handing:of_run"),
    }


@hookimpl
def slime_trackers() -> Mapping[str, Callable[..., Tracker]]:
    return {"tensorboard": TensorBoard, "mlflow": MLflow, "trackio": Trackio, "wandb": WeightsAndBiases}


@hookimpl
def slime_check(observe: ObserveConfig) -> Sequence[str]:
    """What a chosen tracker needs must be there."""
    trackers, found = observe.trackers, list[str]()
    if "mlflow" in trackers and not (trackers["mlflow"].get("tracking_uri") or os.environ.get("MLFLOW_TRACKING_URI")):
        found.append("observe.trackers.mlflow.tracking_uri is not set, nor MLFLOW_TRACKING_URI: where to is not known")
    for name in ("mlflow", "trackio", "wandb"):
        if name in trackers and find_spec(name) is None:
            install = f"pip install 'slime-observers[{name}]'"
            found.append(f"observe.trackers.{name} needs {name}, which is not installed: run {install}")
    return found
