"""Engines of a run that die come back: started again, with the weights that were published last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.cluster.engine_return import EngineReturn


@hookimpl
def slime_engine_returns() -> Mapping[str, Callable[[], EngineReturn]]:
    return {"restart": _restart}


def _restart() -> EngineReturn:
    from slime_sglang.returning.returning import Restart

    return Restart()
