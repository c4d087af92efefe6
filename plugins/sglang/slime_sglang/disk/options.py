"""The keys of `weights` that the transport `disk` adds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from slime.config.declare import Bound, key
from slime.config.weights import WeightsConfig


@dataclass
class DiskWeights(WeightsConfig):
    path: str = "${run.dir}/${run.name}/weights"
    """With `transport: disk`, the folder that versions are published in, of this run alone. Every host of the run sees
    it by the same path."""
    full_every: int = key(20, Bound(1, 10**6))
    """With `transport: disk`: every n-th version is full, the others are deltas, of what changed since the version
    before; 1: all are full. Publisher and engines keep a version in host memory where deltas are written."""


def disk_weights(weights: WeightsConfig) -> DiskWeights:
    """The section, to which this plugin adds its keys."""
    return cast(DiskWeights, weights)
