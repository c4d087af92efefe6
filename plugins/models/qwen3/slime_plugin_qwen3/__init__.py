"""Qwen3 for slime: the dense `qwen3` family and the mixture-of-experts `qwen3_moe`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slime.hookspecs import hookimpl
from slime.models.bridge import ModelBridge


@hookimpl
def slime_models() -> Mapping[str, Callable[[], ModelBridge]]:
    from slime_plugin_qwen3 import bridge

    return {"qwen3": bridge.Qwen3, "qwen3_moe": bridge.Qwen3Moe}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_plugin_qwen3.conf"]
