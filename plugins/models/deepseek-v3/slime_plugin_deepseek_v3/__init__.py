"""DeepSeek-V3 for slime: the families `deepseek_v3`, which DeepSeek-R1 belongs to, and `deepseek_v32`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slime.hookspecs import hookimpl
from slime.models.bridge import ModelBridge


@hookimpl
def slime_models() -> Mapping[str, Callable[[], ModelBridge]]:
    from slime_plugin_deepseek_v3 import bridge

    return {"deepseek_v3": bridge.DeepseekV3, "deepseek_v32": bridge.DeepseekV32}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_plugin_deepseek_v3.conf"]
