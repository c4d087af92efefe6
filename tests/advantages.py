"""Sequences to train on with the advantages of an estimator, as a run makes them that takes nothing from rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from slime.config.schema import AlgoConfig
from slime.plugins import Contribution, Registry
from slime.sampling.guarded import GuardedEstimator
from slime.sampling.samples import compare
from slime.types import ADVANTAGES, Group, TrainSample


def guarded(estimator: Any) -> GuardedEstimator:
    """As if it came from a plugin."""
    item = Contribution("estimator", "odd", lambda: estimator, "slime-odd", "1.2")
    return GuardedEstimator(Registry("estimator", [item]), AlgoConfig(advantage="odd"), patience_s=0.2)


def to_train_samples(
    groups: Sequence[Group], estimator: Any, version: int, max_weight_lag: int | None, *, mask_truncated: bool = False
) -> list[TrainSample]:
    compared = compare(groups, estimator.min_samples, version, max_weight_lag, mask_truncated=mask_truncated)
    found = []
    for sequence, values in zip(compared.sequences, compared.advantages(guarded(estimator), {}), strict=True):
        column = np.zeros_like(sequence.loss_mask)
        column[sequence.loss_mask != 0] = values
        found.append(sequence.with_columns(**{ADVANTAGES: column}))
    return found
