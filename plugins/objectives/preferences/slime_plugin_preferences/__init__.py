"""Learning from pairs of a chosen and a rejected answer for slime: the objective `dpo`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slime.contracts import Objective
from slime.hookspecs import hookimpl
from slime_plugin_preferences.dpo import Dpo


@hookimpl
def slime_objectives() -> Mapping[str, Callable[..., Objective]]:
    return {"dpo": Dpo}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_plugin_preferences.conf"]
