"""Gemma 3 for slime: its text models, `gemma3_text`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slime.hookspecs import hookimpl
from slime.models.bridge import ModelBridge


@hookimpl
def slime_models() -> Mapping[str, Callable[[], ModelBridge]]:
    from slime_plugin_gemma3 import bridge

    return {"gemma3_text": bridge.Gemma3}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_plugin_gemma3.conf"]
