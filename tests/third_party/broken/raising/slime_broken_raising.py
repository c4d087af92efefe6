"""Its hook raises."""

from typing import Any

from slime.hookspecs import hookimpl


@hookimpl
def slime_rewards() -> Any:
    raise FileNotFoundError("rewards.json")
