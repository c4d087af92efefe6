"""From rewarded groups to sequences to train on: the only place where a reward becomes an advantage per token."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count

import numpy as np

from slime.errors import SlimeError
from slime.estimator import Attempt
from slime.sampling.guarded import GuardedEstimator
from slime.segments import Segment, WeightSpan
from slime.types import ADVANTAGES, IS_CURRENT, ROLLOUT_LOGPROBS, Batch, Group, MicroBatch, Sample, Status, TrainSample

MOST_MISSING = 0.01
"""The share of the trained tokens that may lack what engines were to record of them."""


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


@dataclass(frozen=True)
class Compared:
    """The samples of a step that an estimator compares, by group, and the sequences of them that are trained on, each
    with the number of its attempt. Their advantages are 0, as nobody knows them yet."""

    groups: Sequence[Sequence[Attempt]]
    sequences: Sequence[TrainSample]

    def advantages(self, estimator: GuardedEstimator, penalties: Mapping[int, float]) -> list[np.ndarray]:
        """[its loss tokens] of each sequence. All segments of a sample have its advantage.

        Args:
            penalties: by number of a sequence, what is taken from the reward of its attempt before it is compared.
        """
        taken, numbers = defaultdict[int | None, float](float), count()
        for number, penalty in penalties.items():
            taken[self.sequences[number].attempt] += penalty
        groups = [
            [replace(attempt, reward=attempt.reward - taken[next(numbers)]) for attempt in group]
            for group in self.groups
        ]
        of_attempts = chain.from_iterable(estimator.advantages(groups))
        left, found = dict[int | None, np.ndarray](enumerate(of_attempts)), list[np.ndarray]()
        for sequence in self.sequences:
            num_learnt = np.count_nonzero(sequence.loss_mask)
            own, left[sequence.attempt] = np.split(left[sequence.attempt], [num_learnt])
            found.append(own)
        return found


def with_advantages(batches: Sequence[Batch], advantages: Sequence[np.ndarray]) -> list[Batch]:
    """Packed sequences, with the advantages of their loss tokens."""

    def given(micro: MicroBatch) -> MicroBatch:
        column = np.zeros_like(micro.columns[ADVANTAGES])
        if micro.sample_ids:
            column[micro.loss_mask != 0] = np.concatenate([advantages[number] for number in micro.sample_ids])
        return replace(micro, columns={**micro.columns, ADVANTAGES: column})

    return [replace(batch, micro_batches=[[*map(given, each)] for each in batch.micro_batches]) for batch in batches]


def compare(
    groups: Sequence[Group], min_samples: int, version: int, max_weight_lag: int | None, *, mask_truncated: bool = False
) -> Compared:
    """What a trainer that holds weight `version` learns of `groups`, in their order.

    Compared are the samples that have a value and a token to learn from. Others are left out, and so is a group with
    fewer such samples than an estimator needs.

    Args:
        max_weight_lag: tokens sampled by weights that are more versions older are masked; None masks none.
        mask_truncated: samples that were cut off are compared with, and nothing is learnt of their own tokens.

    Raises:
        SlimeError: no token is left to learn from.
    """
    compared = [learning(group, version, max_weight_lag, min_samples) for group in groups]
    samples = [*enumerate(chain.from_iterable(compared))]
    learnt = [pair for pair in samples if not (mask_truncated and pair[1].status is Status.TRUNCATED)]
    if not learnt:
        raise _nothing_left(groups, compared, version, max_weight_lag, min_samples)
    return Compared(
        [[_attempt(sample, version, max_weight_lag) for sample in of_group] for of_group in compared if of_group],
        [each for number, sample in learnt for each in _train_samples(sample, number, version, max_weight_lag)],
    )


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
    """Versions behind `version`; 0 of tokens that nobody sampled, which have no loss."""
    return 0 if span.version is None else version - span.version


def _attempt(sample: Sample, version: int, max_weight_lag: int | None) -> Attempt:
    assert sample.reward is not None, "samples without a value are left out"
    counts = [int(np.count_nonzero(_loss_mask(segment, version, max_weight_lag))) for segment in sample.segments]
    return Attempt(sample.reward, sum(counts), sample, tuple(filter(None, counts)))


def _train_samples(sample: Sample, attempt: int, version: int, max_weight_lag: int | None) -> Iterator[TrainSample]:
    """The segments of a sample that have a loss token."""
    for segment in sample.segments:
        loss_mask = _loss_mask(segment, version, max_weight_lag)
        if not loss_mask.any():
            continue
        segment.check()
        yield TrainSample(
            tokens=np.asarray([*segment.context, *segment.tokens], dtype=np.int64),
            loss_mask=loss_mask,
            columns={
                ADVANTAGES: np.zeros(len(segment.tokens), dtype=np.float32),
                ROLLOUT_LOGPROBS: np.asarray(segment.logprobs, dtype=np.float32),
                # 1 where weights of `version` alone say the log-prob.
                IS_CURRENT: _of_tokens(
                    segment, [_lag(span, version) == 0 and not span.is_mixed for span in segment.spans]
                ),
            },
            attempt=attempt,
            recorded={
                name: np.frombuffer(rows.data, rows.dtype).reshape(rows.shape)
                for name, rows in segment.recorded.items()
            },
            row=sample.prompt.metadata,
        )


def with_numbers(samples: Sequence[TrainSample], names: Sequence[str]) -> tuple[list[TrainSample], dict[str, float]]:
    """The samples with numbers that engines told of sampled tokens as columns, 0 where they told nothing; and the
    means over loss tokens, `rollout/<name>`: of the numbers, or of how many a token has."""

    def column(sample: TrainSample, name: str) -> np.ndarray:
        told = sample.recorded.get(name, np.zeros(0, np.float32))
        found = np.zeros((sample.num_tokens, *told.shape[1:]), told.dtype)
        found[: len(told)] = told
        return found[sample.num_tokens - sample.num_response_tokens :]

    found = []
    for sample in samples:
        others = {name: rows for name, rows in sample.recorded.items() if name not in names}
        found.append(replace(sample.with_columns(**{name: column(sample, name) for name in names}), recorded=others))
    of = {name: np.concatenate([each.columns[name][each.loss_mask != 0] for each in found]) for name in names}
    counted = {name: told if told.ndim == 1 else np.count_nonzero(told, axis=1) for name, told in of.items()}
    return found, {f"rollout/{name}": float(told.mean(dtype=np.float64)) for name, told in counted.items()}


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


def _of_tokens(segment: Segment, of_spans: Sequence[bool]) -> np.ndarray:
    """[num_tokens] float32, of what is true of each span."""
    repeated: np.ndarray = np.repeat(np.asarray(of_spans, np.float32), [span.num_tokens for span in segment.spans])
    return repeated
