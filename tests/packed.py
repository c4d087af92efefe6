"""What tests of packs read of them. No torch."""

from __future__ import annotations

import numpy as np

from slime.types import Batch, MicroBatch


def micro_batches(batch: Batch) -> list[MicroBatch]:
    return [micro for of_rank in batch.micro_batches for micro in of_rank]


def token_loss(micro: MicroBatch) -> np.ndarray:
    """A made-up loss of each predicted token, from its context alone: the packing must not change it."""
    return np.sin(micro.tokens * 7.0 + micro.labels * 3.0 + micro.position_ids)


def weighted_loss(batch: Batch) -> float:
    return float(sum((token_loss(micro) * micro.loss_weights).sum(dtype=np.float64) for micro in micro_batches(batch)))
