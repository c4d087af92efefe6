"""Where a rank's tokens stand in the whole pack: for attention that looks keys up by their row.

Shape letters: t tokens of this context-parallel rank, T tokens of the pack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slime_megatron.train.model.packed.context_parallel import RowRange, row_index, runs_of_rank
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
    def of(
        cls,
        lengths: Sequence[int],
        cp_size: int,
        cp_rank: int,
        *,
        contiguous: bool,
        prefixes: Sequence[tuple[range, ...]] | None,
        device: torch.device,
    ) -> PackRows:
        """From the padded length of each sequence of the pack, and the rows that it shares with earlier ones."""
        how: dict[str, Any] = {"contiguous": contiguous, "prefixes": prefixes}
        borders = [0, *accumulate(lengths)]
        ranks = [runs_of_rank(borders, cp_size, rank, **how) for rank in range(cp_size)]
        gathered = np.concatenate([row_index(runs) for runs in ranks])
        mine = ranks[cp_rank]
        positions = np.concatenate([np.arange(run.num_before, run.num_seen) for run in mine])
        tensors = [on_device(torch.from_numpy(rows), device) for rows in (positions, np.argsort(gathered))]
        return cls(mine, *tensors)
