"""Names of adapters' tensors, which reach engines as they are, with the weights that they add to or without."""

from __future__ import annotations

PREFIX = "base_model.model."
"""Begin of the names of an adapter's two matrices, as PEFT's files have them, and of no model's."""
SCALE = f"{PREFIX}lora_scale"
"""Name of a tensor [1] in float64: the factor of the product of the two."""


def of_adapter(name: str) -> bool:
    return name.startswith(PREFIX)
