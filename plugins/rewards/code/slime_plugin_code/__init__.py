"""The reward `code` for slime: Python in the answer, run against tests in a sandbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from slime.contracts import RewardModel
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig


@hookimpl
def slime_rewards() -> Mapping[str, Callable[..., RewardModel]]:
    from slime_plugin_code.reward import CodeReward

    return {"code": CodeReward}


@hookimpl
def slime_check(cfg: SlimeConfig) -> Sequence[str]:
    """Nothing is run where the machine lacks what confines it."""
    if cfg.reward.name != "code" or cfg.reward.options.get("unconfined"):
        return []
    from slime_plugin_code.reward import LOCAL
    from slime_plugin_code.sandbox import missing

    where, key = cfg.reward.options.get("sandbox", LOCAL), "reward.options.sandbox"
    if where != LOCAL:
        is_url = where.startswith(("http://", "https://"))
        return [] if is_url else [f"{key}={where} is neither {LOCAL} nor a URL that begins with http:// or https://"]
    lacks = missing()
    elsewhere = f"{key}=http://HOST:8080 runs programs at a server of SandboxFusion's form"
    return [f"reward.name=code: the sandbox cannot be had here: {lacks}; {elsewhere}"] if lacks else []
