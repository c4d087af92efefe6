"""A version whose adapters engines get as they are, beside the weights that they add to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from slime.weights.portions import Export, Portion
from weight_buckets.adapters import SCALE


@dataclass(frozen=True)
class WithAdapters:
    """A `slime.weights.portions.Export`: the weights, if they come with this version, then adapters of the same
    receivers; `scale` is of their products."""

    of_weights: Export | None
    of_adapters: Export
    scale: float

    @property
    def receivers(self) -> Sequence[int | None]:
        return self.of_adapters.receivers

    def run(self) -> Iterator[Portion]:
        for tensors, _ in self.of_weights.run() if self.of_weights else ():
            yield tensors, False
        for tensors, last in self.of_adapters.run():
            if last:
                tensors.append((SCALE, torch.tensor([self.scale], dtype=torch.float64, device=tensors[0][1].device)))
            yield tensors, last
