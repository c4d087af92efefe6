"""The config of a run as trackers and `slime watch` show it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

HIDDEN = "(not shown to trackers)"
"""In place of environment variables, which may be somebody's keys."""


def shown_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config`, section -> key -> value as in config.yaml, without the values of environment variables."""
    shown = copy.deepcopy(dict(config))
    engines = shown.get("rollout", {}).get("engines")
    for holder in (shown.get("cluster"), *(engines.values() if isinstance(engines, dict) else ())):
        if isinstance(holder, dict) and isinstance(holder.get("environment"), dict):
            holder["environment"] = dict.fromkeys(holder["environment"], HIDDEN)
    return shown
