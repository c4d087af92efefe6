"""From rewarded groups to sequences to train on: the only place where a reward becomes an advantage per token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slime.algo.advantages import group_advantages
from slime.config.schema import AlgoConfig
from slime.types import Group, Sample, TrainSample


def to_train_samples(groups: Sequence[Group], algo: AlgoConfig, version: int) -> list[TrainSample]:
    """The trainable samples of `groups`, in their order, for a trainer that holds weight `version`.

    Samples whose reward gave no value have no advantage and are left out; they took no part in their group's
    statistics either.
    """
    return [
        _train_sample(sample, advantage, version)
        for group in groups
        for sample, advantage in zip(group.samples, _advantages(group, algo), strict=True)
        if advantage is not None and sample.response_tokens
    ]


def _advantages(group: Group, algo: AlgoConfig) -> list[float | None]:
    return group_advantages([sample.reward for sample in group.samples], algo.normalize_std)


def _train_sample(sample: Sample, advantage: float, version: int) -> TrainSample:
    sample.check()
    versions = np.repeat([span.version for span in sample.spans], [span.num_tokens for span in sample.spans])
    return TrainSample(
        tokens=np.asarray([*sample.prompt.tokens, *sample.response_tokens], dtype=np.int64),
        loss_mask=np.asarray(sample.loss_mask, dtype=np.float32),
        advantages=np.full(len(sample.response_tokens), advantage, dtype=np.float32),
        rollout_logprobs=np.asarray(sample.logprobs, dtype=np.float32),
        is_current=(versions == version).astype(np.float32),
    )
