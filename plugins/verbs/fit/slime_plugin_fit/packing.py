"""What a step is packed into under each layout, by the packer that a run uses. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slime.layout import Grid, split_layers
from slime.plan.packs import Packs, packs_of


@dataclass
class Packing:
    """Packs of many layouts; those that pack alike share theirs.

    Attributes:
        lengths: tokens of sequences, by optimizer step.
        attention: `slime.plan.flops.attention_length`.
    """

    lengths: Sequence[Sequence[int]]
    attention: float
    _found: dict[tuple[int, ...], Packs] = field(default_factory=dict)

    def of(self, grid: Grid, model: Mapping[str, Any], cap: int) -> Packs:
        """Of micro-batches of `cap` tokens, or as many as the longest sequence has: a config that is refused for its
        cap is estimated all the same."""
        chunks = len(split_layers(model["num_layers"], grid, model)[0])
        cap = max(cap, grid.padded(max(map(max, self.lengths))))
        key = (grid.dp, grid.packing_align, grid.pp if chunks > 1 else 1, cap)
        if key not in self._found:
            self._found[key] = packs_of(self.lengths, grid, chunks, cap, self.attention)
        return self._found[key]
