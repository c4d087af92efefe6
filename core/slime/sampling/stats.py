"""Metrics of finished groups."""

from __future__ import annotations

import bisect
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from slime.sampling.samples import learning
from slime.types import UNFINISHED, Group, Sample, Status


def step_stats(
    settled: Sequence[Group], kept: Sequence[Group], version: int, max_weight_lag: int | None
) -> dict[str, float]:
    """Metrics of a step: of all groups that were judged, and of those that weight `version` is trained on."""
    lags = lag_stats(kept, version, max_weight_lag)
    return {**group_stats(settled), **_set_stats(settled), **zero_variance(kept), **lags, **_shaping_stats(kept)}


def group_stats(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards, their parts, response lengths (sampled tokens) and what programs noted over every sample of `groups`.

    Samples whose reward gave no value are left out of the rewards; with no value at all there is no reward metric.
    """
    samples = [sample for group in groups for sample in group.samples]
    notes = _means((sample.metadata for sample in samples), "rollout/{}_mean")
    parts = _means((sample.verdict.parts for sample in samples if sample.verdict), "rollout/reward_part/{}")
    rewards, values = {}, [value for group in groups for value in group.raw_rewards]
    if values:
        rewards = {"rollout/reward_mean": statistics.fmean(values), "rollout/reward_std": statistics.pstdev(values)}
    return {**notes, **rewards, **parts, **_lengths(samples)}


def _set_stats(groups: Sequence[Group]) -> dict[str, float]:
    """`rollout/<set>/...`, the same of each prompt set, and how many groups it has; nothing where no set is named."""
    by_set = defaultdict[str, list[Group]](list)
    for group in groups:
        by_set[group.prompt.set or "main"].append(group)
    found: dict[str, float] = {}
    for name, of in by_set.items() if {*by_set} != {"main"} else ():
        own = {**group_stats(of), "rollout/groups": float(len(of))}
        found |= {key.replace("rollout/", f"rollout/{name}/", 1): value for key, value in own.items()}
    return found


def lag_stats(groups: Sequence[Group], version: int, max_weight_lag: int | None) -> dict[str, float]:
    """How many weight versions before `version` the tokens of `groups` were sampled: mean and largest lag over them,
    and the share of them that lag too far to be trained on; how many groups are left with fewer than two samples,
    or without their only one.
    """
    lags = Counter[int]()
    for span in (span for group in groups for sample in group.samples for span in sample.spans):
        assert span.version is not None, "they are of sampled tokens"
        lags[version - span.version] += span.num_tokens
    num_tokens = max(1, lags.total())  # every response may be empty
    num_masked = sum(count for lag, count in lags.items() if max_weight_lag is not None and lag > max_weight_lag)
    return {
        "rollout/weight_lag_mean": sum(lag * count for lag, count in lags.items()) / num_tokens,
        "rollout/weight_lag_max": float(max(lags, default=0)),
        "rollout/weight_lag_masked_share": num_masked / num_tokens,
        "rollout/weight_lag_masked_groups": float(
            sum(not learning(group, version, max_weight_lag, min(2, len(group.samples))) for group in groups)
        ),
    }


def zero_variance(groups: Sequence[Group]) -> dict[str, float]:
    """Share of `groups` whose rewards are all equal, so that their advantages are 0, and their share of the tokens. Of
    prompts with a single sample it is their step whose rewards are compared."""
    judged = [[sample for sample in group.samples if sample.reward is not None] for group in groups]
    tokens = [sum(sum(segment.loss_mask) for sample in of for segment in sample.segments) for of in judged]
    are_alone = all(len(group.samples) == 1 for group in groups)
    compared = [
        [value for each in groups for value in each.rewards] if are_alone else group.rewards for group in groups
    ]
    equal = [len(set(rewards)) < 2 for rewards in compared]
    in_equal = sum(count for count, says_nothing in zip(tokens, equal, strict=True) if says_nothing)
    return {
        "rollout/zero_variance_share": sum(equal) / len(groups),
        "rollout/zero_variance_token_share": in_equal / max(sum(tokens), 1),
    }


def _shaping_stats(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards that filters added to those of `groups`: the mean, and the share of samples whose reward they changed;
    nothing where none did."""
    amounts = [sample.shaping for group in groups for sample in group.samples if sample.reward is not None]
    if not any(amounts):
        return {}
    changed = sum(amount != 0 for amount in amounts)
    return {"rollout/shaping_mean": statistics.fmean(amounts), "rollout/shaped_share": changed / len(amounts)}


def length_bias(begun: Sequence[Group], kept: Sequence[Group]) -> dict[str, float]:
    """`rollout/length_bias`: by how many tokens the responses in groups that a step both began and kept are longer than
    those in all groups that it began. Below 0 where it stopped before the long ones had ended.

    How long unfinished responses would be is estimated from the others, at most as long as the longest by now (Kaplan
    and Meier 1958: of the responses that have reached a length, some end there).
    """
    ids = {group.id for group in kept}
    chosen = [sample.num_sampled for group in begun if group.id in ids for sample in group.samples]
    samples = [sample for group in begun for sample in group.samples if sample.status is not Status.FAILED]
    if not chosen or not samples:
        return {}
    ended = Counter(sample.num_sampled for sample in samples if sample.status not in UNFINISHED)
    lengths = sorted(sample.num_sampled for sample in samples)
    mean, share, before = 0.0, 1.0, 0
    for length in sorted({*ended, lengths[-1]}):
        mean += share * (length - before)
        num_as_long = len(lengths) - bisect.bisect_left(lengths, length)
        share, before = share * (1 - ended[length] / num_as_long), length
    return {"rollout/length_bias": statistics.fmean(chosen) - mean}


def pass_at_k(groups: Sequence[Group], threshold: float) -> dict[str, float]:
    """`rollout/pass_at_<k>`: the chance that one of k responses to a prompt passes, as the mean over prompts, for
    k = 2, 4, 8, ... up to the samples a prompt.

    The unbiased estimator of Chen et al. 2021 (arXiv:2107.03374): 1 - C(n - c, k) / C(n, k), with c of n rewards
    passing. A prompt with fewer than k values is left out.

    Args:
        threshold: a response passes whose reward is that or more, but for the rounding of a sum of parts.
    """
    least = threshold - 1e-9 * abs(threshold)
    counted = [(len(group.rewards), sum(value >= least for value in group.rewards)) for group in groups]
    most = max((len(group.samples) for group in groups), default=0)
    found = {}
    for k in (2**power for power in range(1, most.bit_length())):
        if chances := [1 - math.comb(n - c, k) / math.comb(n, k) for n, c in counted if n >= k]:
            found[f"rollout/pass_at_{k}"] = statistics.fmean(chances)
    return found


def _means(told: Iterable[Mapping[str, float]], metric: str) -> dict[str, float]:
    found = defaultdict[str, list[float]](list)
    for each in told:
        for name, value in each.items():
            found[name].append(value)
    return {metric.format(name): statistics.fmean(values) for name, values in sorted(found.items())}


def _lengths(samples: Sequence[Sample]) -> dict[str, float]:
    lengths = [sample.num_sampled for sample in samples]
    num_truncated = sum(sample.status is Status.TRUNCATED for sample in samples)
    return {
        "rollout/response_length_mean": statistics.fmean(lengths),
        "rollout/response_length_max": float(max(lengths)),
        "rollout/truncated_share": num_truncated / len(samples),
    }
