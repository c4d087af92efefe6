"""What a transport's receiver works with on one rank of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

Gather = Callable[[Any], Sequence[Any]]
"""What every rank of the engine offers, in their order; collective."""


@dataclass(frozen=True)
class EngineSide:
    """One rank of an engine that takes a version in.

    Attributes:
        device: where the model's parameters are.
        groups: process groups of the rank and others, by the name under which it joined them (`EngineLink.join`).
        load: of a bucket as `Bucket.payload` tells it, its tensor in memory of `device`.
    """

    model: torch.nn.Module
    device: torch.device
    groups: Mapping[str, dist.ProcessGroup]
    load: Callable[[dict[str, Any]], Any]
    gather: Gather
