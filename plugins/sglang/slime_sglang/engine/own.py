"""Processes of slime's engines among SGLang's: it loads the plugins of its environment in other programs' as well."""

from __future__ import annotations

import os

TAKES_WEIGHTS = "SLIME_ENGINE"
"""Variable with which somebody starts a server that is to take weights from slime: `SLIME_ENGINE=1`."""


def is_of_an_engine() -> bool:
    """Whether this process is one of an engine that slime started, or of a server that is to be one."""
    return "SLIME_ENGINE_SCRATCH" in os.environ or os.environ.get(TAKES_WEIGHTS, "0") != "0"
