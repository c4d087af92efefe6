"""Sound, but made for another slime."""

from typing import Any

from slime.hookspecs import hookimpl


@hookimpl
def slime_rewards() -> Any:
    return {"version": dict}
