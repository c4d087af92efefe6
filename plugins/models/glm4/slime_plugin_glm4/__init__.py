"""GLM-4 for slime: the dense `glm4` family and the mixtures of experts `glm4_moe` and `glm4_moe_lite`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slime.hookspecs import hookimpl
from slime.models.bridge import ModelBridge


@hookimpl
def slime_models() -> Mapping[str, Callable[[], ModelBridge]]:
    from slime_plugin_glm4 import bridge

    return {"glm4": bridge.Glm4, "glm4_moe": bridge.Glm4Moe, "glm4_moe_lite": bridge.Glm4MoeLite}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_plugin_glm4.conf"]
