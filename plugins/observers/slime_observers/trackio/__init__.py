"""Trackio for slime: the tracker `trackio`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slime.contracts import Tracker
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig

INSTALL = "pip install 'slime-observers[trackio]'"


@hookimpl
def slime_trackers() -> Mapping[str, Callable[..., Tracker]]:
    return {"trackio": _trackio}


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    from slime_observers.trackio.tracker import Options

    return {"tracker/trackio": Options}


@hookimpl
def slime_check(cfg: SlimeConfig) -> Sequence[str]:
    if "trackio" in cfg.observe.trackers and importlib.util.find_spec("trackio") is None:
        return [f"observe.trackers.trackio needs trackio, which is not installed: run {INSTALL}"]
    return []


def _trackio(**options: Any) -> Tracker:
    from slime_observers.trackio.tracker import Options, Trackio

    return Trackio(Options(**options))
