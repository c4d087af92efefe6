"""Names a config folder that its wheel does not have."""

from typing import Any

from slime.hookspecs import hookimpl


@hookimpl
def slime_config_paths() -> Any:
    return ["pkg://slime_broken_config.conf"]
