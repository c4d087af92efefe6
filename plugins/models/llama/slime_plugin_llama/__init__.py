"""Llama for slime: Llama 2 to 3.3, and what shares its `model_type`, SmolLM2 and R1's distilled Llamas among it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slime.hookspecs import hookimpl
from slime.models.bridge import ModelBridge


@hookimpl
def slime_models() -> Mapping[str, Callable[[], ModelBridge]]:
    from slime_plugin_llama import bridge

    return {"llama": bridge.Llama}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_plugin_llama.conf"]
