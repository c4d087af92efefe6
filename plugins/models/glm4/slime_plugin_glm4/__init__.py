"""GLM-4 for slime: the dense `glm4` family and the mixtures of experts `glm4_moe` and `glm4_moe_lite`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from slime.hookspecs import hookimpl
from slime.models.bridge import ModelBridge

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig


@hookimpl
def slime_models() -> Mapping[str, Callable[[], ModelBridge]]:
    from slime_plugin_glm4 import bridge

    return {"glm4": bridge.Glm4, "glm4_moe": bridge.Glm4Moe, "glm4_moe_lite": bridge.Glm4MoeLite}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_plugin_glm4.conf"]


@hookimpl
def slime_check(cfg: SlimeConfig) -> Sequence[str]:
    """SGLang 0.5.16 counts redundant experts of `glm4_moe` and builds its layers without them."""
    from slime.topology.topology import read_topology

    key = "ep_num_redundant_experts"
    groups = read_topology(cfg).groups if cfg.model.family == "glm4_moe" else ()
    return [
        f"{group.home_of(key)} is {group.sglang[key]}, but SGLang builds glm4_moe without redundant experts"
        for group in groups
        if group.sglang.get(key)
    ]
