"""Brings a reward of a name that slime-rewards brings already."""

from typing import Any

from slime.hookspecs import hookimpl


@hookimpl
def slime_rewards() -> Any:
    return {"math": dict}
