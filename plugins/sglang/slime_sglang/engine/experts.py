"""SGLang's physical experts, of which several may hold the same expert of the model (`ep_num_redundant_experts`).

They are numbered over all ranks of an engine, each of which has an equal run of them.
"""

from __future__ import annotations

from typing import Any


def every_copy(locations: Any, layer: int, expert: int, require_global_experts: bool = False) -> list[int]:
    """All physical experts that hold an expert of the model, instead of SGLang's answer to its loader: that leaves out
    a second copy on one rank, and all but the first in a layer that drafts, where nothing would ever be written.

    Args:
        locations: SGLang's `ExpertLocationMetadata`, without layers that draft: their copies lie as at first.
        layer, expert: indices of the decoder layer, and of the expert in the checkpoint.
        require_global_experts: the loader asks for the order that SGLang begins with.
    """
    holds = locations.physical_to_logical_map_cpu
    if require_global_experts or layer >= len(holds):
        return list(range(expert, locations.num_physical_experts, locations.num_logical_experts))
    return [int(place) for place in (holds[layer] == expert).nonzero().flatten()]
