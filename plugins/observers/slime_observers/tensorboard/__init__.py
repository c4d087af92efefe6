"""TensorBoard for slime: the tracker `tensorboard`, selected by default if it is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slime.contracts import Tracker
from slime.hookspecs import hookimpl
from slime_observers.tensorboard.tracker import TensorBoard


@hookimpl
def slime_trackers() -> Mapping[str, Callable[..., Tracker]]:
    return {"tensorboard": TensorBoard}
