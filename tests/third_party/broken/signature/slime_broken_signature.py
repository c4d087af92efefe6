"""Its hook wants an argument that slime does not pass."""

from typing import Any

from slime.hookspecs import hookimpl


@hookimpl
def slime_rewards(settings: Any) -> Any:
    return {"signature": settings}
