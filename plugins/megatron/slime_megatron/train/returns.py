"""From a critic's values to advantages and returns, on the ranks.

Shape letters: r rows of a micro-batch, t of them on this context-parallel rank.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from slime.estimator import PENALTIES, RETURNS, VALUES, CriticEstimator
from slime.types import ADVANTAGES, MicroBatch
from slime_megatron.train.local_batch import LocalMicroBatch
from slime_megatron.train.model.packed.context_parallel import row_index, runs_of_rank

EPSILON = 1e-8
"""Added to the deviation that advantages are divided by."""


def with_advantages(
    estimator: CriticEstimator,
    whole: Sequence[Sequence[MicroBatch]],
    local: Sequence[Sequence[LocalMicroBatch]],
    values: Sequence[Sequence[Tensor]],
    device: torch.device,
    *,
    contiguous: bool,
) -> tuple[list[list[LocalMicroBatch]], dict[str, float]]:
    """The micro-batches of a step with advantages in the place of rewards, and with values and returns. Collective
    over all ranks. Values of tokens that are not trained on are never read.

    Args:
        whole, local: of this rank, by optimizer step. What `local` has in the column `PENALTIES`, if it is there, is
            taken from the rewards.
        values: [1, t] of each; empty on a pipeline stage other than the last, where all three columns are 0.
        contiguous: how context parallelism cut the sequences.

    Returns:
        Also explained_variance: 1 - Var(return - value) / Var(return) over the loss tokens of the step; left out where
        all returns are equal.
    """
    num_ranks, moments = parallel_state.get_context_parallel_world_size(), np.zeros(7)
    found: list[list[tuple[np.ndarray, np.ndarray]]] = []
    for packs, own_packs, of_batch in zip(whole, local, values, strict=True):
        found.append([])
        for number, mine in enumerate(of_batch):
            micro, taken = packs[number], own_packs[number].columns.get(PENALTIES)
            indices = [row_index(runs_of_rank(micro.cu_seqlens, num_ranks, rank, contiguous=contiguous))
                       for rank in range(num_ranks)]  # fmt: skip
            penalties = None if taken is None else _gathered(taken, indices)
            expected = _gathered(mine[0], indices)
            advantages, returns = advantages_of(estimator, micro, expected, penalties)
            learnt = micro.loss_mask != 0
            moments += _moments(advantages[learnt], returns[learnt], returns[learnt] - expected[learnt])
            own = indices[parallel_state.get_context_parallel_rank()]
            found[-1].append((advantages[own], returns[own]))
    # Each loss token is counted by every tensor- and context-parallel rank of the last stage: in all sums alike.
    sums = torch.from_numpy(moments).to(device)
    dist.all_reduce(sums)
    count, *totals = sums.tolist()
    means = [total / count for total in totals]
    spreads = [square - mean**2 for mean, square in zip(means[::2], means[1::2], strict=True)]
    (mean, *_), (variance, spread, missed) = means, spreads
    deviation = math.sqrt(max(variance, 0.0))
    shift, scale = (mean, deviation + EPSILON) if estimator.whitens else (0.0, 1.0)

    def completed(own: LocalMicroBatch, number: int, batch: int) -> LocalMicroBatch:
        columns = dict.fromkeys((ADVANTAGES, VALUES, RETURNS), torch.zeros_like(own.loss_mask))
        if found[batch]:
            advantages, returns = found[batch][number]
            masked = own.loss_mask == 0
            made = {ADVANTAGES: (advantages - shift) / scale, RETURNS: returns}
            columns |= {name: torch.from_numpy(x).to(own.loss_mask).masked_fill(masked, 0) for name, x in made.items()}
            columns[VALUES] = values[batch][number][0].masked_fill(masked, 0)
        return dataclasses.replace(own, columns={**own.columns, **columns})

    valued = [
        [completed(own, number, batch) for number, own in enumerate(of_batch)] for batch, of_batch in enumerate(local)
    ]
    return valued, {"explained_variance": 1 - max(missed, 0.0) / spread} if spread > 0 else {}


def advantages_of(
    estimator: CriticEstimator, micro: MicroBatch, values: np.ndarray, penalties: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """[r] float64 advantages and returns of the loss tokens of each sequence, 0 elsewhere.

    Args:
        values: [r], of which those of other tokens may be anything.
        penalties: [r] likewise, which are taken from the rewards.
    """
    advantages, returns = np.zeros(len(values)), np.zeros(len(values))
    rewards = micro.columns[ADVANTAGES].astype(np.float64)
    if penalties is not None:
        rewards = rewards - penalties
    for start, end in pairwise(micro.cu_seqlens.tolist()):
        rows = start + np.flatnonzero(micro.loss_mask[start:end])
        if len(rows):
            own = values[rows].astype(np.float64)
            advantages[rows] = estimator.from_values(rewards[rows], own)
            returns[rows] = estimator.targets(rewards[rows], own, advantages[rows])
    return advantages, returns


def _gathered(mine: Tensor, indices: Sequence[np.ndarray]) -> np.ndarray:
    """[r] from the [t] of each context-parallel rank, at `indices`."""
    parts = [mine.contiguous()]
    if len(indices) > 1:
        parts = [torch.empty_like(mine) for _ in indices]
        dist.all_gather(parts, mine.contiguous(), group=parallel_state.get_context_parallel_group())
    whole = np.empty(sum(map(len, indices)), np.float32)
    for index, part in zip(indices, parts, strict=True):
        whole[index] = part.float().cpu().numpy()
    return whole


def _moments(*numbers: np.ndarray) -> np.ndarray:
    """Count, and of each the sum and that of the squares."""
    return np.array([len(numbers[0]), *(total for each in numbers for total in (each.sum(), np.square(each).sum()))])
