"""Where a rank's tokens stand in the whole pack: for attention that looks keys up by their row.

Shape letters: t tokens of this context-parallel rank, T tokens of the pack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slime_megatron.train.model.packed.context_parallel import RowRange, row_index
from slime_megatron.train.model.packed.copies import on_device


@dataclass(frozen=True)
class PackRows:
    """Any split of the pack over context-parallel ranks.

    Attributes:
        runs: this rank's tokens, in order.
        positions: [t] int64, of each token within its sequence, shared ones before it counted.
        order: [T] int64: row i of the pack is row `order[i]` of what an all-gather over the ranks returns.
    """

    runs: list[RowRange]
    positions: Tensor
    order: Tensor

    @classmethod
    def of(cls, ranks: Sequence[list[RowRange]], cp_rank: int, device: torch.device) -> PackRows:
        """From the rows that each rank holds."""
        gathered = np.concatenate([row_index(runs) for runs in ranks])
        positions = np.concatenate([np.arange(run.num_before, run.num_seen) for run in ranks[cp_rank]])
        tensors = [on_device(torch.from_numpy(rows), device) for rows in (positions, np.argsort(gathered))]
        return cls(ranks[cp_rank], *tensors)
