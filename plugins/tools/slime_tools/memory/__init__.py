"""What GPUs and hosts of a run will hold, phase by phase: the estimate of memory for `cluster.device=cuda`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.sizes.estimate import MemoryEstimate
    from slime.sizes.model import ModelSizes


def of_gpus(sizes: ModelSizes) -> MemoryEstimate:
    """See `slime_tools.memory.estimate.GpuMemory`."""
    from slime_tools.memory.estimate import GpuMemory

    return GpuMemory.of(sizes)


@hookimpl
def slime_memory_estimates() -> Mapping[str, Callable[..., MemoryEstimate]]:
    return {"cuda": of_gpus}
