"""The event loop that a run generates in."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec


def new_runner() -> asyncio.Runner:
    """Of uvloop's event loop where that is installed, as it is beside SGLang: a turn costs a fifth less there than in
    Python's own (`benchmarks/results/generation-cpu.md`)."""
    if find_spec("uvloop") is None:
        return asyncio.Runner()
    from uvloop import new_event_loop

    return asyncio.Runner(loop_factory=new_event_loop)
