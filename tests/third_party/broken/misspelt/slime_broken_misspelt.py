"""Its hook has a name that slime never calls."""

from typing import Any

from slime.hookspecs import hookimpl


@hookimpl
def slime_reward() -> Any:
    return {"misspelt": dict}
