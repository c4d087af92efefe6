"""Adapters that reach engines as they are, beside the weights that they add to: how the tensors are told apart.

A version may hold both or adapters alone, in buckets of either kind.
"""

from __future__ import annotations

PREFIX = "base_model.model."
"""Of the names of an adapter's two matrices, as PEFT's files have them; no model has names like these."""
SCALE = f"{PREFIX}lora_scale"
"""A tensor [1] in float64 that comes with them: by what the product of the two is multiplied."""


def of_adapter(name: str) -> bool:
    """Whether a tensor of this name belongs to adapters."""
    return name.startswith(PREFIX)
