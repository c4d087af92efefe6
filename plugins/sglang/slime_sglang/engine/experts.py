"""Where an engine keeps the experts of a mixture: SGLang's physical experts, of which several may hold the same one.

They are numbered over all ranks of an engine, each of which has an equal run of them. Without
`ep_num_redundant_experts` they are the model's own.
"""

from __future__ import annotations

from typing import Any


def every_copy(locations: Any, layer: int, expert: int, require_global_experts: bool = False) -> list[int]:
    """Instead of SGLang's answer to its loader: the physical experts that hold an expert of the model, all of them.

    SGLang's leaves out a second copy on one rank, and all but the first in a layer that drafts. Nothing would ever be
    written there.

    Args:
        locations: SGLang's `ExpertLocationMetadata`; it knows nothing of layers that draft, whose copies lie as if
            nobody had placed them.
        layer: index of the decoder layer.
        expert: index in the checkpoint.
        require_global_experts: the loader asks for the order that SGLang begins with.
    """
    holds = locations.physical_to_logical_map_cpu
    if require_global_experts or layer >= len(holds):
        return list(range(expert, locations.num_physical_experts, locations.num_logical_experts))
    return [int(place) for place in (holds[layer] == expert).nonzero().flatten()]
