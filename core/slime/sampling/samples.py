"""From rewarded groups to sequences to train on: the only place where a reward becomes an advantage per token."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from guarded_workers.worker import describe
from slime.errors import SlimeError
from slime.estimator import Attempt, Estimator
from slime.segments import Rows, Segment, WeightSpan
from slime.types import ADVANTAGES, IS_CURRENT, ROLLOUT_LOGPROBS, Group, Sample, Status, TrainSample

MOST_MISSING = 0.01
"""Of the tokens that are trained on, those without what engines were to record of them."""


def spread(groups: Sequence[Group], num_steps: int, version: int) -> list[Group]:
    """The groups in an order in which each of `num_steps` equal parts has about the same number of tokens.

    In the order they were begun, continued groups, which have the long responses, come first: optimizer steps would go
    from long to short in every rollout. The longest group goes to a part that is drawn by `version`, each further one
    to the part with the fewest tokens that has room; inside a part the order stays. One step changes nothing.
    """
    drawn = random.Random(version).sample(range(num_steps), num_steps)
    sizes = [len(part) for part in np.array_split(np.arange(len(groups)), num_steps)]
    parts: list[list[int]] = [[] for _ in sizes]
    tokens = [sum(len(segment.tokens) for sample in group.samples for segment in sample.segments) for group in groups]
    held = [0] * num_steps
    for number in sorted(range(len(groups)), key=lambda number: -tokens[number]):
        with_room = (step for step in range(num_steps) if len(parts[step]) < sizes[step])
        step = min(with_room, key=lambda step: (held[step], drawn[step]))
        parts[step].append(number)
        held[step] += tokens[number]
    return [groups[number] for part in parts for number in sorted(part)]


def to_train_samples(
    groups: Sequence[Group],
    estimator: Estimator,
    version: int,
    max_weight_lag: int | None,
    *,
    mask_truncated: bool = False,
) -> list[TrainSample]:
    """The trainable segments of `groups`, in their order, for a trainer that holds weight `version`.

    The estimator compares the samples that have a value and a token to learn from. Others are left out, and so is a
    group with fewer such samples than it needs. All segments of a sample have its advantage.

    Args:
        max_weight_lag: tokens sampled by weights that are more versions older are masked; None masks none.
        mask_truncated: samples that were cut off are compared with, and nothing is learnt of their own tokens.

    Raises:
        SlimeError: no token is left to learn from, or the estimator gave no advantage for each sample.
    """
    compared = [learning(group, version, max_weight_lag, estimator.min_samples) for group in groups]
    attempts = [_attempt(sample, version, max_weight_lag) for samples in compared for sample in samples]
    samples = [sample for of_group in compared for sample in of_group]
    learnt = [not (mask_truncated and sample.status is Status.TRUNCATED) for sample in samples]
    if not any(learnt):
        raise _nothing_left(groups, compared, version, max_weight_lag, estimator.min_samples)
    advantages = _advantages(estimator, [len(of_group) for of_group in compared if of_group], attempts)
    return [
        train_sample
        for number, (sample, of_tokens) in enumerate(zip(samples, advantages, strict=True))
        if learnt[number]
        for train_sample in _train_samples(sample, number, of_tokens, version, max_weight_lag)
    ]


def _nothing_left(
    groups: Sequence[Group],
    compared: Sequence[Sequence[Sample]],
    version: int,
    max_weight_lag: int | None,
    min_samples: int,
) -> SlimeError:
    """How many samples each cause leaves out, and what helps against the most frequent."""
    samples = [sample for group in groups for sample in group.samples]
    empty = [sample for sample in samples if not _is_sampled(sample)]
    failed = [sample for sample in samples if sample.reward is None and _is_sampled(sample)]
    usable = [sample for group in groups for sample in learning(group, version, max_weight_lag, 1)]
    cut = [sample for of_group in compared for sample in of_group]
    counts = {
        f"over {max_weight_lag} versions old": len(samples) - len(empty) - len(failed) - len(usable),
        "without a value": len(failed),
        "empty": len(empty),
        f"in groups with fewer than {min_samples} that could be compared": len(usable) - len(cut),
        "cut off (algo.mask_truncated)": len(cut),
    }
    todos = (
        "Raise rollout.max_weight_lag or lower rollout.over_sampling.",
        "See in the run's samples why rewards give none.",
        "See in the run's samples what the model answers.",
        "Raise rollout.samples_per_prompt, or see in the run's samples what the others lack.",
        "Raise rollout.sampling.max_response_tokens, or set algo.mask_truncated=false.",
    )
    told = [(count, why, todo) for (why, count), todo in zip(counts.items(), todos, strict=True) if count]
    whys = ", ".join(f"{count} {why}" for count, why, _ in told)
    what = f"no token to learn from: of {len(samples)} samples {whys}"
    return SlimeError(what, where=f"weight version {version}", todo=max(told)[2] if told else "")


def _is_sampled(sample: Sample) -> bool:
    return any(any(segment.loss_mask) for segment in sample.segments)


def learning(group: Group, version: int, max_weight_lag: int | None, min_samples: int) -> list[Sample]:
    """The samples of a group that are compared and trained on: `min_samples` or more, or none."""
    found = [
        sample
        for sample in group.samples
        if sample.reward is not None
        and any(_loss_mask(segment, version, max_weight_lag).any() for segment in sample.segments)
    ]
    return found if len(found) >= min_samples else []


def _lag(span: WeightSpan, version: int) -> int:
    """Of tokens that nobody sampled it says nothing: they have no loss."""
    return 0 if span.version is None else version - span.version


def _attempt(sample: Sample, version: int, max_weight_lag: int | None) -> Attempt:
    assert sample.reward is not None, "samples without a value are left out"
    counts = [int(np.count_nonzero(_loss_mask(segment, version, max_weight_lag))) for segment in sample.segments]
    return Attempt(sample.reward, sum(counts), tuple(filter(None, counts)))


def _advantages(estimator: Estimator, sizes: Sequence[int], attempts: Sequence[Attempt]) -> list[np.ndarray]:
    """By attempt, [num_loss_tokens] advantages.

    Args:
        sizes: attempts of each group.
    """
    ends = np.cumsum(sizes).tolist()
    groups = [attempts[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    where, todo = f"estimator {type(estimator).__name__}", "Correct it; slime_testing.estimators checks one."
    try:
        found = estimator.advantages(groups)
    except Exception as error:
        raise SlimeError(f"advantages raised {describe(error)}", where=where, todo=todo) from error
    if (gave := [len(of_group) for of_group in found]) != sizes:
        raise SlimeError(f"gave {gave} advantages, not {sizes}", where=where, todo=todo)
    spread = []
    for attempt, advantage in zip(attempts, [one for of_group in found for one in of_group], strict=True):
        values = np.asarray(advantage, dtype=np.float32)
        if values.shape not in ((), (attempt.num_loss_tokens,)) or not np.isfinite(values).all():
            what = f"gave {advantage!r:.80} for a sample of {attempt.num_loss_tokens} loss tokens"
            raise SlimeError(f"{what}, not one finite number, or one for each", where=where, todo=todo)
        spread.append(np.broadcast_to(values, attempt.num_loss_tokens))
    return spread


def _train_samples(
    sample: Sample, attempt: int, advantages: np.ndarray, version: int, max_weight_lag: int | None
) -> Iterator[TrainSample]:
    """Those of its segments that have a loss token; each takes its part of the advantages."""
    start = 0
    for segment in sample.segments:
        loss_mask = _loss_mask(segment, version, max_weight_lag)
        if not loss_mask.any():
            continue
        segment.check()
        of_tokens = np.zeros(len(segment.tokens), dtype=np.float32)
        end = start + int(np.count_nonzero(loss_mask))
        of_tokens[loss_mask != 0] = advantages[start:end]
        start = end
        yield TrainSample(
            tokens=np.asarray([*segment.context, *segment.tokens], dtype=np.int64),
            loss_mask=loss_mask,
            columns={
                ADVANTAGES: of_tokens,
                ROLLOUT_LOGPROBS: np.asarray(segment.logprobs, dtype=np.float32),
                IS_CURRENT: _is_current(segment, version),
            },
            attempt=attempt,
            recorded={name: _array(rows) for name, rows in segment.recorded.items()},
            row=sample.prompt.metadata,
        )


def _array(rows: Rows) -> np.ndarray:
    return np.frombuffer(rows.data, rows.dtype).reshape(rows.shape)


def with_numbers(samples: Sequence[TrainSample], names: Sequence[str]) -> tuple[list[TrainSample], dict[str, float]]:
    """The samples with numbers that engines told of sampled tokens as columns, 0 where they told nothing; and the
    means over loss tokens, `rollout/<name>`."""

    def column(sample: TrainSample, name: str) -> np.ndarray:
        found, begin = np.zeros(sample.num_tokens, np.float32), sample.num_tokens - sample.num_response_tokens
        told = sample.recorded.get(name, found[:0])
        found[: len(told)] = told
        return found[begin:]

    found = []
    for sample in samples:
        others = {name: rows for name, rows in sample.recorded.items() if name not in names}
        found.append(replace(sample.with_columns(**{name: column(sample, name) for name in names}), recorded=others))
    of = {name: [each.columns[name][each.loss_mask != 0] for each in found] for name in names}
    return found, {f"rollout/{name}": float(np.concatenate(of[name]).mean(dtype=np.float64)) for name in names}


def missing_shares(samples: Sequence[TrainSample], names: Iterable[str]) -> dict[str, float]:
    """`rollout/<name>_missing_share`: of the tokens that engines computed, which are all but the last of a sequence,
    those of which they recorded nothing that can be replayed.

    Raises:
        SlimeError: they are more than `MOST_MISSING`.
    """
    shares = {}
    num_tokens = sum(sample.num_tokens - 1 for sample in samples)
    for name in names:
        of_samples = [sample.recorded[name][: sample.num_tokens - 1] for sample in samples if name in sample.recorded]
        known = sum(int(np.count_nonzero(rows.any(axis=tuple(range(1, rows.ndim))))) for rows in of_samples)
        shares[f"rollout/{name}_missing_share"] = share = 1 - known / num_tokens
        if share > MOST_MISSING:
            what = f"engines recorded no {name} of {share:.1%} of the tokens, more than {MOST_MISSING:.0%}"
            todo = "Set train.routing_replay and observe.routing to false, and see the engines' logs."
            raise SlimeError(what, where="train.routing_replay", todo=todo)
    return shares


def _loss_mask(segment: Segment, version: int, max_weight_lag: int | None) -> np.ndarray:
    """[num_tokens] float32, without the tokens that are too old."""
    mask = np.asarray(segment.loss_mask, dtype=np.float32)
    if max_weight_lag is None or all(_lag(span, version) <= max_weight_lag for span in segment.spans):
        return mask
    young: np.ndarray = mask * _of_tokens(segment, [_lag(span, version) <= max_weight_lag for span in segment.spans])
    return young


def _is_current(segment: Segment, version: int) -> np.ndarray:
    """[num_tokens] float32, 1 where weights of `version` alone say the log-prob."""
    return _of_tokens(segment, [_lag(span, version) == 0 and not span.is_mixed for span in segment.spans])


def _of_tokens(segment: Segment, of_spans: Sequence[bool]) -> np.ndarray:
    """[num_tokens] float32, of what is true of each span."""
    repeated: np.ndarray = np.repeat(np.asarray(of_spans, np.float32), [span.num_tokens for span in segment.spans])
    return repeated
