"""GLM-5 for slime: `glm_moe_dsa`, a mixture of experts with sparse attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slime.hookspecs import hookimpl
from slime.models.bridge import ModelBridge


@hookimpl
def slime_models() -> Mapping[str, Callable[[], ModelBridge]]:
    from slime_plugin_glm5 import bridge

    return {"glm_moe_dsa": bridge.GlmMoeDsa}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_plugin_glm5.conf"]
