"""What slime itself contributes, through the same hooks as any plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slime.hookspecs import hookimpl
from slime.types import Decision, Group

if TYPE_CHECKING:
    from slime.contracts import BufferPolicy, SampleFilter, Tracker


class KeepAll:
    """Filter `none`: keeps every group in which an advantage can be formed, that is with at least two values."""

    def decide(self, group: Group) -> Decision:
        if len(group.rewards) < 2:
            return Decision(keep=False, reason="too_few_values")
        return Decision(keep=True)


@dataclass
class FifoOptions:
    max_groups: int | None = None
    """Groups held at most; null holds all."""


def _fifo(**options: Any) -> BufferPolicy:
    from slime.rollout.buffer import FifoBuffer

    return FifoBuffer(**options)


@hookimpl
def slime_filters() -> Mapping[str, Callable[..., SampleFilter]]:
    return {"none": KeepAll}


@hookimpl
def slime_buffers() -> Mapping[str, Callable[..., BufferPolicy]]:
    return {"fifo": _fifo}


def _tensorboard() -> Tracker:
    from slime.observe.tensorboard import TensorBoard

    return TensorBoard()


@hookimpl
def slime_trackers() -> Mapping[str, Callable[..., Tracker]]:
    return {"tensorboard": _tensorboard}


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    return {"buffer/fifo": FifoOptions}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ("pkg://slime.conf",)
