"""MiMo for slime: the `mimo` family, which MiMo-7B belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slime.hookspecs import hookimpl
from slime.models.bridge import ModelBridge


@hookimpl
def slime_models() -> Mapping[str, Callable[[], ModelBridge]]:
    from slime_plugin_mimo import bridge

    return {"mimo": bridge.Mimo}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_plugin_mimo.conf"]
