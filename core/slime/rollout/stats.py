"""Metrics of finished groups."""

from __future__ import annotations

import math
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


def pass_at_k(groups: Sequence[Group]) -> dict[str, float]:
    """`rollout/pass_at_<k>`: the chance that one of k responses to a prompt has a reward above 0, as the mean over
    prompts, for k = 2, 4, 8, ... up to the samples a prompt.

    The unbiased estimator of Chen et al. 2021 (arXiv:2107.03374): 1 - C(n - c, k) / C(n, k), with c of n rewards
    above 0. A prompt with fewer than k values is left out.
    """
    counted = [(len(group.rewards), sum(value > 0 for value in group.rewards)) for group in groups]
    most = max((len(group.samples) for group in groups), default=0)
    found = {}
    for k in (2**power for power in range(1, most.bit_length())):
        if chances := [1 - math.comb(n - c, k) / math.comb(n, k) for n, c in counted if n >= k]:
            found[f"rollout/pass_at_{k}"] = statistics.fmean(chances)
    return found


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
