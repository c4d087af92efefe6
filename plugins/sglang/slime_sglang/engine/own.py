"""Processes of slime's engines among SGLang's: it loads the plugins of its environment in other programs' as well."""

from __future__ import annotations

import os


def is_of_an_engine() -> bool:
    """Whether this process is one of an engine that slime started."""
    return "SLIME_ENGINE_SCRATCH" in os.environ
