"""Qwen2 for slime: Qwen2, Qwen2.5 with its Coder and Math models, and R1's distilled Qwens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slime.hookspecs import hookimpl
from slime.models.bridge import ModelBridge


@hookimpl
def slime_models() -> Mapping[str, Callable[[], ModelBridge]]:
    from slime_plugin_qwen2 import bridge

    return {"qwen2": bridge.Qwen2}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_plugin_qwen2.conf"]
