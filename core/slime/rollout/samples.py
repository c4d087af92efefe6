"""From rewarded groups to sequences to train on: the only place where a reward becomes an advantage per token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slime.algo.advantages import group_advantages
from slime.config.schema import AlgoConfig
from slime.errors import SlimeError
from slime.types import Group, Sample, TrainSample


def to_train_samples(
    groups: Sequence[Group], algo: AlgoConfig, version: int, max_weight_lag: int | None
) -> list[TrainSample]:
    """The trainable samples of `groups`, in their order, for a trainer that holds weight `version`.

    Samples whose reward gave no value have no advantage and are left out; they took no part in their group's
    statistics either. So are those without a token to learn from, which did take part.

    Args:
        max_weight_lag: tokens sampled by weights that are more versions older are masked; None masks none.

    Raises:
        SlimeError: no token is left to learn from.
    """
    samples = [
        _train_sample(sample, advantage, version, max_weight_lag)
        for group in groups
        for sample, advantage in zip(group.samples, _advantages(group, algo), strict=True)
        if advantage is not None
    ]
    samples = [sample for sample in samples if sample.loss_mask.any()]
    if not samples:
        what = f"no token to learn from: every sample is empty, without a value or over {max_weight_lag} versions old"
        todo = "If they are too old, raise rollout.max_weight_lag or lower rollout.over_sampling."
        raise SlimeError(what, where=f"weight version {version}", todo=todo)
    return samples


def _advantages(group: Group, algo: AlgoConfig) -> list[float | None]:
    return group_advantages([sample.reward for sample in group.samples], algo.normalize_std)


def _train_sample(sample: Sample, advantage: float, version: int, max_weight_lag: int | None) -> TrainSample:
    sample.check()
    spans = np.asarray([(version - span.version, span.num_tokens) for span in sample.spans], np.int64).reshape(-1, 2)
    lags = np.repeat(spans[:, 0], spans[:, 1])
    loss_mask = np.asarray(sample.loss_mask, dtype=np.float32)
    return TrainSample(
        tokens=np.asarray([*sample.prompt.tokens, *sample.response_tokens], dtype=np.int64),
        loss_mask=loss_mask if max_weight_lag is None else loss_mask * (lags <= max_weight_lag),
        advantages=np.full(len(sample.response_tokens), advantage, dtype=np.float32),
        rollout_logprobs=np.asarray(sample.logprobs, dtype=np.float32),
        is_current=(lags == 0).astype(np.float32),
    )
