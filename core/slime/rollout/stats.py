"""Metrics of finished groups."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence

from slime.types import Group, Sample, Status


def group_stats(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards, their parts and response lengths (tokens) over every sample of `groups`.

    Samples whose reward gave no value are left out of the rewards; with no value at all there is no reward metric.
    """
    samples = [sample for group in groups for sample in group.samples]
    return {**_rewards(samples), **_parts(samples), **_lengths(samples)}


def lag_stats(groups: Sequence[Group], version: int, max_weight_lag: int | None) -> dict[str, float]:
    """How many weight versions before `version` the tokens of `groups` were sampled: mean and largest lag over them,
    and the share of them that lag too far to be trained on.
    """
    spans = [span for group in groups for sample in group.samples for span in sample.spans]
    lags = Counter[int]()
    for span in spans:
        lags[version - span.version] += span.num_tokens
    num_tokens = max(1, lags.total())  # every response may be empty
    num_masked = sum(count for lag, count in lags.items() if max_weight_lag is not None and lag > max_weight_lag)
    return {
        "rollout/weight_lag_mean": sum(lag * count for lag, count in lags.items()) / num_tokens,
        "rollout/weight_lag_max": float(max(lags, default=0)),
        "rollout/weight_lag_masked_share": num_masked / num_tokens,
    }


def zero_variance(groups: Sequence[Group]) -> dict[str, float]:
    """Share of `groups` whose rewards are all equal, so that their advantages are 0, and their share of the tokens."""
    tokens = [sum(sum(sample.loss_mask) for sample in group.samples if sample.reward is not None) for group in groups]
    equal = [len(set(group.rewards)) < 2 for group in groups]
    in_equal = sum(count for count, says_nothing in zip(tokens, equal, strict=True) if says_nothing)
    return {
        "rollout/zero_variance_share": sum(equal) / len(groups),
        "rollout/zero_variance_token_share": in_equal / max(sum(tokens), 1),
    }


def _rewards(samples: Sequence[Sample]) -> dict[str, float]:
    values = [sample.reward for sample in samples if sample.reward is not None]
    if not values:
        return {}
    return {"rollout/reward_mean": statistics.fmean(values), "rollout/reward_std": statistics.pstdev(values)}


def _parts(samples: Sequence[Sample]) -> dict[str, float]:
    parts = defaultdict[str, list[float]](list)
    for sample in samples:
        for name, value in (sample.verdict.parts if sample.verdict else {}).items():
            parts[name].append(value)
    return {f"rollout/reward_part/{name}": statistics.fmean(values) for name, values in sorted(parts.items())}


def _lengths(samples: Sequence[Sample]) -> dict[str, float]:
    lengths = [len(sample.response_tokens) for sample in samples]
    num_truncated = sum(sample.status is Status.TRUNCATED for sample in samples)
    return {
        "rollout/response_length_mean": statistics.fmean(lengths),
        "rollout/response_length_max": float(max(lengths)),
        "rollout/truncated_share": num_truncated / len(samples),
    }
