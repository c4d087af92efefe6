"""Packs of sequences that share what they begin with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import pairwise, permutations, takewhile

import numpy as np
import pytest

from slime.config.schema import LossMean
from slime.train.packing import num_readers, pack, shared_rows
from slime.types import MicroBatch, TrainSample
from slime_testing.recorded import recorded_samples
from tests.packed import micro_batches, weighted_loss


def grouped_samples(num_groups: int = 7, of_group: int = 6) -> list[TrainSample]:
    """Groups of samples with one prompt, of 1 to 30 tokens."""
    generator, found = np.random.default_rng(5), []
    for number in range(num_groups):
        prompt = generator.integers(0, 50, 1 + number * 29 // (num_groups - 1))
        for sample in recorded_samples(of_group, 50, seed=number):
            response = sample.tokens[-sample.num_response_tokens :]
            found.append(dataclasses.replace(sample, tokens=np.concatenate([prompt, response])))
    return found


def grown(num_groups: int = 5, attempts: int = 3, segments: int = 4) -> list[TrainSample]:
    """Groups of attempts whose segments go on behind any part of one another, with or without tokens in between."""
    generator, drawn, found = np.random.default_rng(6), recorded_samples(60, 50, seed=8), []
    for group in range(num_groups):
        prompt = generator.integers(0, 50, 1 + 9 * group)
        for attempt in range(group * attempts, (group + 1) * attempts):
            begun = [prompt]
            for number in range(segments):
                cut = begun[generator.integers(len(begun))]
                cut = cut[: generator.integers(len(prompt), len(cut) + 1)] if number else prompt
                said = generator.integers(0, 50, generator.integers(0, 6) * (number > 0))
                sample = drawn[attempt * segments + number]
                begun.append(np.concatenate([cut, said, sample.tokens[-sample.num_response_tokens :]]))
                found.append(dataclasses.replace(sample, tokens=begun[-1], attempt=attempt))
    return found


def rows_by_sequence(micro: MicroBatch, samples: list[TrainSample]) -> list[np.ndarray]:
    """By the definition of `MicroBatch.prefixes`: where the tokens of each sequence stand."""
    found = [np.empty(0, np.int64)]
    prefixes = [0] * len(micro.sample_ids) if micro.prefixes is None else micro.prefixes
    for number, start, count in zip(micro.sample_ids, micro.cu_seqlens[:-1], prefixes, strict=True):
        own = np.arange(start, start + samples[number].num_tokens - count)
        found.append(np.concatenate([found[-1][:count], own]))
    return found[1:]


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("loss_mean", LossMean)
@pytest.mark.parametrize(
    "options",
    [{"num_dp": 1, "align": 1, "max_tokens": 10_000}, {"num_dp": 3, "align": 4, "max_tokens": 160}],
    ids=str,
)
@pytest.mark.parametrize("make", [grouped_samples, grown])
def test_sequences_share_what_they_begin_with(
    make: Callable[[], list[TrainSample]], options: dict, loss_mean: LossMean, lookahead: int
) -> None:
    """Each is made of the very tokens, and its losses stand at rows of its own, behind as many as blocks look ahead."""
    samples, seen = make(), list[int]()
    how = {"loss_mean": loss_mean, "max_response_tokens": 64, "lookahead": lookahead, **options}
    (batch,), (apart,) = pack(samples, **how, share_below=1.0), pack(samples, **how)
    for micro in (micro for micro in micro_batches(batch) if micro.sample_ids):  # a rank's last one may be padding
        readers = np.zeros_like(micro.tokens)
        every = zip(micro.sample_ids, rows_by_sequence(micro, samples), pairwise(micro.cu_seqlens), strict=True)
        for number, rows, (start, end) in every:
            sample = samples[number]
            own = rows[rows >= start]
            assert len(own) >= min(sample.num_tokens, sample.num_response_tokens + 1 + lookahead), "the last ones"
            assert (micro.tokens[rows] == sample.tokens).all()
            readers[rows] += 1
            assert (micro.position_ids[rows] == np.arange(sample.num_tokens)).all()
            assert (micro.labels[own[:-1]] == sample.tokens[1:][-len(own) + 1 :]).all()
            if lookahead and len(rows) > len(own):  # the key of a row depends on the token behind it
                assert (micro.tokens[rows[: -len(own)] + 1] == sample.tokens[1 : len(rows) - len(own) + 1]).all()
            predicting = own[-1 - sample.num_response_tokens : -1]
            assert (micro.loss_mask[predicting] == sample.loss_mask).all()
            assert micro.loss_mask[start:end].sum() == sample.loss_mask.sum()
            for name, values in sample.columns.items():
                assert (micro.columns[name][predicting] == values * sample.loss_mask).all(), name
            assert micro.is_padding[start:end].tolist() == [False] * len(own) + [True] * (end - start - len(own))
            seen.append(number)
        assert (num_readers(micro) == readers).all()
        assert len(micro.tokens) <= options["max_tokens"]
        assert not (micro.cu_seqlens % options["align"]).any()
    assert sorted(seen) == list(range(len(samples)))
    rows = [int((~micro.is_padding).sum()) for micro in micro_batches(batch)]
    assert sum(rows) < batch.num_tokens == apart.num_tokens
    assert batch.num_loss_tokens == apart.num_loss_tokens
    assert len({len(of_rank) for of_rank in batch.micro_batches}) == 1
    # weights are fp32: 6e-8 relative each, some hundred terms of order 1e-2
    assert weighted_loss(batch) == pytest.approx(weighted_loss(apart), abs=1e-7)


def test_rows_are_those_of_all_ancestors() -> None:
    """The second has 6 tokens of the first, the third 8 of the second, the fourth 3 and the fifth none."""
    found = shared_rows([0, 8, 12, 20, 22, 25], [0, 6, 8, 3, 0])
    assert found == [(), (range(6),), (range(6), range(8, 10)), (range(3),), ()]


def num_shared(samples: Sequence[TrainSample], order: Sequence[int]) -> int:
    """By the definition: each with that earlier one with which it has most in common before its response. Of a last
    token nothing is computed."""
    total = 0
    for place, number in enumerate(order):
        context = samples[number].tokens[: -samples[number].num_response_tokens].tolist()[:-1]
        pairs = ([*zip(samples[other].tokens[:-1].tolist(), context, strict=False)] for other in order[:place])
        total += max((len([*takewhile(lambda pair: pair[0] == pair[1], of)]) for of in pairs), default=0)
    return total


def test_no_order_of_a_group_shares_more() -> None:
    """All orders of six segments of two attempts, for eight groups."""
    samples = grown(num_groups=8, attempts=2, segments=3)
    for start in range(0, len(samples), 6):
        group = samples[start : start + 6]
        (batch,) = pack(group, num_dp=1, align=1, max_tokens=10_000, loss_mean=LossMean.token, share_below=1.0)
        [[micro]] = batch.micro_batches
        assert micro.prefixes is not None
        assert micro.prefixes.sum() == max(num_shared(group, order) for order in permutations(range(6)))


@pytest.mark.parametrize("turns", [4, 8])
def test_turns_with_rewritten_histories_take_a_fraction_of_their_tokens(turns: int) -> None:
    """A prompt of one token; each answer has 5 tokens, and later turns read 100 other tokens instead of it. Sharing
    leaves about 2 / turns of the rows."""
    generator, histories, samples = np.random.default_rng(4), [np.asarray([1])], list[TrainSample]()
    for number in range(turns):
        answer = np.append(50 + number, generator.integers(0, 50, 4))
        tokens = np.concatenate([*histories, answer])
        samples.append(TrainSample(tokens, np.ones(5, np.float32), attempt=0))
        histories.append(generator.integers(0, 50, 100))
    (batch,) = pack(samples, num_dp=1, align=1, max_tokens=1000, loss_mean=LossMean.token, share_below=1.0)
    [[micro]] = batch.micro_batches
    assert len(micro.tokens) == 6 + (turns - 1) * 105
    assert batch.num_tokens / len(micro.tokens) == pytest.approx(turns / 2, rel=0.05)


def test_a_group_is_divided_where_ranks_would_have_nothing_to_do() -> None:
    samples = [sample for sample in grouped_samples() if len(sample.tokens) > 30][:6]
    (batch,) = pack(samples, num_dp=3, align=1, max_tokens=10_000, loss_mean=LossMean.token, share_below=1.0)
    assert all(micro.sample_ids for micro in micro_batches(batch))


@pytest.mark.parametrize(("share_below", "shares"), [(0.41, False), (0.43, True)])
def test_a_step_shares_where_little_enough_is_left(share_below: float, shares: bool) -> None:
    """Eight of 1,024 + 512 tokens behind one prompt: but for the prompt's last token, 5,120 of 12,288."""
    generator = np.random.default_rng(0)
    prompt = generator.integers(0, 100, 1024)
    answers = generator.integers(0, 100, (8, 512))
    samples = [TrainSample(np.append(prompt, answer), np.ones(512, np.float32)) for answer in answers]
    how = {"num_dp": 1, "align": 1, "max_tokens": 13_000, "loss_mean": LossMean.token}
    (batch,) = pack(samples, **how, share_below=share_below)
    assert [micro.prefixes is not None for micro in micro_batches(batch)] == [shares]
