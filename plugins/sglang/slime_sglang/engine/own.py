"""Which SGLang processes are those of slime's engines.

SGLang loads the plugins of its environment in all of its processes, also in those of another program: its weights are
nothing of ours.
"""

from __future__ import annotations

import os


def is_of_an_engine() -> bool:
    """Whether this process is one of an engine that slime started."""
    return "SLIME_ENGINE_SCRATCH" in os.environ
