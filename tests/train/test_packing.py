import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from slime.config.schema import LossMean
from slime.errors import SlimeError
from slime.models.blocks import Attention
from slime.train.bins import Shape, Unit, share_out
from slime.train.packing import pack, skipped_steps
from slime.types import TrainSample
from slime_testing.recorded import recorded_samples
from tests.packed import micro_batches, weighted_loss

SAMPLES = recorded_samples(37, 50, seed=3)
RESPONSE_LIMIT = 64
CONFIGURATIONS = [
    {"num_dp": 1, "align": 1, "max_tokens": 10_000},
    {"num_dp": 1, "align": 1, "max_tokens": 40},
    {"num_dp": 3, "align": 4, "max_tokens": 64},
    {"num_dp": 4, "align": 8, "max_tokens": 96, "micro_batch_multiple": 2},
]
packings = pytest.mark.parametrize("options", CONFIGURATIONS, ids=str)


def plain_mean(samples: list[TrainSample], loss_mean: LossMean) -> float:
    """The definition, without any packing."""
    losses = []
    for sample in samples:
        position = np.arange(sample.num_tokens - sample.num_response_tokens, sample.num_tokens) - 1
        loss = np.sin(sample.tokens[position] * 7.0 + sample.tokens[position + 1] * 3.0 + position)
        losses.append(loss[sample.loss_mask != 0])
    if loss_mean is LossMean.token:
        return float(np.concatenate(losses).mean())
    if loss_mean is LossMean.constant:  # Dr. GRPO (arXiv 2503.20783): every sum over the same constant
        return float(np.mean([loss.sum() / RESPONSE_LIMIT for loss in losses]))
    return float(np.mean([loss.mean() for loss in losses if len(loss)]))


@packings
@pytest.mark.parametrize("loss_mean", LossMean)
def test_the_sum_of_weighted_losses_is_the_mean_whatever_the_packing(options: dict, loss_mean: LossMean) -> None:
    (batch,) = pack(SAMPLES, loss_mean=loss_mean, max_response_tokens=RESPONSE_LIMIT, **options)
    # weights are fp32: 6e-8 relative each, some hundred terms of order 1e-2
    assert weighted_loss(batch) == pytest.approx(plain_mean(SAMPLES, loss_mean), abs=1e-7)


@packings
def test_every_rank_gets_the_same_number_of_micro_batches_under_the_cap(options: dict) -> None:
    (batch,) = pack(SAMPLES, loss_mean=LossMean.token, **options)
    counts = [len(of_rank) for of_rank in batch.micro_batches]
    assert len(counts) == options["num_dp"]
    assert len(set(counts)) == 1
    assert counts[0] % options.get("micro_batch_multiple", 1) == 0
    assert all(len(micro.tokens) <= options["max_tokens"] for micro in micro_batches(batch))
    assert all(border % options["align"] == 0 for micro in micro_batches(batch) for border in micro.cu_seqlens)


@packings
def test_every_sequence_stands_once_and_whole(options: dict) -> None:
    (batch,) = pack(SAMPLES, loss_mean=LossMean.token, **options)
    seen = []
    for micro in micro_batches(batch):
        for number, (start, end) in zip(micro.sample_ids, pairwise(micro.cu_seqlens), strict=True):
            sample = SAMPLES[number]
            seen.append(number)
            length, first = sample.num_tokens, start + sample.num_tokens - sample.num_response_tokens - 1
            assert (micro.tokens[start : start + length] == sample.tokens).all()
            assert (micro.labels[start : start + length - 1] == sample.tokens[1:]).all()
            assert (micro.position_ids[start:end] == np.arange(end - start)).all()
            assert (micro.loss_mask[first : start + length - 1] == sample.loss_mask).all()
            for name, values in sample.columns.items():
                assert (micro.columns[name][first : start + length - 1] == values * sample.loss_mask).all()
            assert not micro.loss_mask[start:first].any()
            assert not micro.loss_mask[start + length - 1 : end].any()
    assert sorted(seen) == list(range(len(SAMPLES)))
    assert batch.num_tokens == sum(sample.num_tokens for sample in SAMPLES)
    assert batch.num_loss_tokens == sum(int(sample.loss_mask.sum()) for sample in SAMPLES)


def test_ranks_carry_like_loads() -> None:
    (batch,) = pack(SAMPLES, num_dp=4, align=1, max_tokens=120, loss_mean=LossMean.token)
    loads = [sum(len(micro.tokens) for micro in of_rank) for of_rank in batch.micro_batches]
    assert max(loads) <= 1.1 * min(loads)


def test_a_share_holds_one_rank_and_what_concerns_all() -> None:
    (batch,) = pack(SAMPLES, num_dp=4, align=1, max_tokens=120, loss_mean=LossMean.token)
    share = batch.share(2)
    assert share.micro_batches[2] is batch.micro_batches[2]
    assert [len(of_rank) > 0 for of_rank in share.micro_batches] == [False, False, True, False]
    assert (share.num_tokens, share.num_loss_tokens) == (batch.num_tokens, batch.num_loss_tokens)


def test_fewest_micro_batches() -> None:
    """Six halves and six other halves of the cap fit six micro-batches and no fewer."""
    tokens = [60] * 6 + [40] * 6
    samples = [TrainSample(np.arange(count), np.ones(3, np.float32)) for count in tokens]
    (batch,) = pack(samples, num_dp=2, align=1, max_tokens=100, loss_mean=LossMean.token)
    assert [len(of_rank) for of_rank in batch.micro_batches] == [3, 3]


def test_packing_is_deterministic() -> None:
    options = {"num_dp": 2, "align": 2, "max_tokens": 80, "loss_mean": LossMean.sample}
    first, second = pack(SAMPLES, **options)[0], pack(SAMPLES, **options)[0]
    assert [micro.sample_ids for micro in micro_batches(first)] == [m.sample_ids for m in micro_batches(second)]


def test_optimizer_steps_share_out_the_samples_in_order() -> None:
    batches = pack(SAMPLES, num_dp=1, align=1, max_tokens=10_000, loss_mean=LossMean.token, num_optimizer_steps=3)
    members = [sorted(i for micro in micro_batches(batch) for i in micro.sample_ids) for batch in batches]
    assert [i for part in members for i in part] == list(range(len(SAMPLES)))
    for batch, part in zip(batches, members, strict=True):
        wanted = plain_mean([SAMPLES[i] for i in part], LossMean.token)
        assert weighted_loss(batch) == pytest.approx(wanted, abs=1e-7)


def test_a_rank_without_sequences_gets_padding_that_weighs_nothing() -> None:
    (batch,) = pack(SAMPLES[:1], num_dp=2, align=4, max_tokens=64, loss_mean=LossMean.sample)
    padding = batch.micro_batches[1][0]
    assert len(padding.tokens) == 4
    assert not padding.loss_weights.any()
    assert padding.sample_ids == ()
    assert weighted_loss(batch) == pytest.approx(plain_mean(SAMPLES[:1], LossMean.sample), abs=1e-7)


def test_a_sample_that_is_all_masked_does_not_count() -> None:
    masked = dataclasses.replace(SAMPLES[0], loss_mask=np.zeros_like(SAMPLES[0].loss_mask))
    (batch,) = pack([masked, *SAMPLES[1:5]], num_dp=1, align=1, max_tokens=999, loss_mean=LossMean.sample)
    assert weighted_loss(batch) == pytest.approx(plain_mean(SAMPLES[1:5], LossMean.sample), abs=1e-7)


def test_demonstrations_have_no_constant_length() -> None:
    samples = [dataclasses.replace(sample, columns={}) for sample in SAMPLES]
    (batch,) = pack(samples, num_dp=1, align=1, max_tokens=500, loss_mean=LossMean.constant, max_response_tokens=64)
    assert weighted_loss(batch) == pytest.approx(plain_mean(SAMPLES, LossMean.token), abs=1e-7)


def test_supervised_samples_carry_no_advantages() -> None:
    samples = [dataclasses.replace(sample, columns={}) for sample in SAMPLES]
    (batch,) = pack(samples, num_dp=1, align=1, max_tokens=500, loss_mean=LossMean.token)
    assert not any(micro.columns for micro in micro_batches(batch))


def test_a_sequence_beyond_the_cap_is_named_with_the_key_to_change() -> None:
    long = TrainSample(np.arange(130), np.ones(100, np.float32))
    with pytest.raises(SlimeError, match=r"max_tokens_per_micro_batch: sample 2 has 130 tokens \(132 padded\).*132"):
        pack([*SAMPLES[:2], long], num_dp=1, align=4, max_tokens=128, loss_mean=LossMean.token)


@pytest.mark.parametrize("loss_mean", LossMean)
@pytest.mark.parametrize(
    ("learnt", "num_steps", "parts"),
    [
        ([1, 1], 3, [[0], [1]]),
        ([1], 4, [[0]]),
        ([0, 0, 1, 1], 2, [[2, 3]]),
        ([1, 1, 0, 0, 1, 1], 3, [[0, 1], [4, 5]]),
        ([0, 1, 0, 0, 0, 0], 3, [[0, 1]]),
        ([1, 1, 1, 1], 2, [[0, 1], [2, 3]]),
    ],
)
def test_optimizer_steps_without_a_loss_token_are_none(
    learnt: list[int], num_steps: int, parts: list[list[int]], loss_mean: LossMean
) -> None:
    """What is left is what a step of its own makes of these samples."""
    samples = [
        sample if learns else dataclasses.replace(sample, loss_mask=np.zeros_like(sample.loss_mask))
        for sample, learns in zip(SAMPLES, learnt, strict=False)
    ]
    options: dict[str, Any] = {"num_dp": 2, "align": 1, "max_tokens": 500, "loss_mean": loss_mean}
    options["max_response_tokens"] = 40
    found = pack(samples, **options, num_optimizer_steps=num_steps)
    wanted = [pack([samples[i] for i in part], **options)[0] for part in parts]
    assert [batch.num_loss_tokens for batch in found] == [batch.num_loss_tokens for batch in wanted]
    for batch, alone in zip(found, wanted, strict=True):
        assert sum(float(micro.loss_weights.sum()) for micro in micro_batches(batch)) == pytest.approx(
            sum(float(micro.loss_weights.sum()) for micro in micro_batches(alone)), rel=1e-6
        )


def test_skipped_optimizer_steps_are_told(caplog: pytest.LogCaptureFixture) -> None:
    assert skipped_steps(4, 4, 7) == {}
    assert not caplog.records
    assert skipped_steps(1, 4, 7) == {"train/skipped_steps": 3.0}
    assert "step 7 takes 1 optimizer steps of 4" in caplog.text


def test_nothing_to_learn_from() -> None:
    masked = [dataclasses.replace(sample, loss_mask=np.zeros_like(sample.loss_mask)) for sample in SAMPLES[:3]]
    with pytest.raises(SlimeError, match="no sample has a token to learn from"):
        pack(masked, num_dp=1, align=1, max_tokens=999, loss_mean=LossMean.token)


@pytest.mark.parametrize("value", np.asarray([-np.inf, None], np.float32))
def test_a_logprob_that_is_not_finite_is_named_with_its_token(value: float) -> None:
    """What the engine's -inf becomes in JSON is a null, which numpy reads as NaN."""
    logprobs = SAMPLES[1].columns["rollout_logprobs"].copy()
    learnt = int(np.flatnonzero(SAMPLES[1].loss_mask)[1])
    logprobs[learnt] = value
    spoilt = SAMPLES[1].with_columns(rollout_logprobs=logprobs)
    token = spoilt.tokens[-spoilt.num_response_tokens :][learnt]
    wanted = f"sample 1 of the rollout, response token {learnt}: the engine gave log-prob {value:g} to token {token}"
    with pytest.raises(SlimeError, match=wanted):
        pack([SAMPLES[0], spoilt], num_dp=1, align=1, max_tokens=999, loss_mean=LossMean.token)


def test_what_a_masked_token_carries_does_not_matter() -> None:
    mask, logprobs = SAMPLES[1].loss_mask.copy(), SAMPLES[1].columns["rollout_logprobs"].copy()
    mask[2], logprobs[2] = 0, -np.inf
    masked = dataclasses.replace(SAMPLES[1], loss_mask=mask).with_columns(rollout_logprobs=logprobs)
    (batch,) = pack([masked], num_dp=1, align=1, max_tokens=999, loss_mean=LossMean.token)
    [[micro]] = batch.micro_batches
    assert np.isfinite(micro.columns["rollout_logprobs"]).all()


def lognormal_samples(count: int, of_group: int = 1) -> list[TrainSample]:
    """Without contents, of 220 to 32,768 tokens, a median of 3,000; groups have a prompt of 200 tokens."""
    lengths = np.clip(np.random.default_rng(7).lognormal(np.log(3000), 1.0, count), 220, 32768).astype(int)
    prompts = np.repeat(np.arange(200 * count // of_group).reshape(-1, 200)[:, :1], 32768, axis=1)
    mask = np.ones(32768, np.float32)
    return [TrainSample(prompts[i // of_group][:n], mask[: n - 200]) for i, n in enumerate(lengths)]


def work_by_rank(samples: list[TrainSample], by_rank: list[list[list[Unit]]], attention_length: float) -> np.ndarray:
    """[rank, micro-batch], by the definition."""

    def work(units: list[Unit]) -> float:
        tokens = [samples[i].num_tokens for unit in units for i in unit.members]
        return sum(n + n**2 / attention_length for n in tokens)

    return np.asarray([[work(units) for units in of_rank] for of_rank in by_rank])


def test_ranks_have_like_work_and_meet_at_like_micro_batches() -> None:
    """Dealt by tokens, the busiest of 64 ranks had 1.09 of the mean, and ranks that wait for one another 1.53."""
    samples = lognormal_samples(8192)
    work = work_by_rank(
        samples, share_out(samples, range(8192), Shape(64, 1, 1, 32768, False, (Attention(2 / 24576),))), 24576
    )
    assert work.size == 1216 == 64 * -(-sum(sample.num_tokens for sample in samples) // (64 * 32768)), "the fewest"
    assert work.sum(1).max() < 1.005 * work.sum(1).mean()
    assert work.max(0).sum() < 1.03 * work.sum(1).mean()


@pytest.mark.parametrize("num_dp", [1, 8])
def test_sharing_prompts_takes_no_more_micro_batches(num_dp: int) -> None:
    """Groups of 16 with long responses: as units of up to a whole micro-batch they needed 6 % more than apart."""
    samples = lognormal_samples(2048, of_group=16)
    shared, apart = (
        share_out(samples, range(2048), Shape(num_dp, 1, 1, 32768, shares, (Attention(2 / 24576),)))
        for shares in (True, False)
    )
    assert len(shared[0]) < len(apart[0])
    assert sorted(i for of_rank in shared for units in of_rank for unit in units for i in unit.members) == list(
        range(2048)
    )


def pairs(count: int) -> list[TrainSample]:
    """Two answers of a prompt each, which are one attempt."""
    generator = np.random.default_rng(5)
    found = []
    for number in range(count):
        prompt = generator.integers(0, 50, int(generator.integers(3, 9)))
        for _ in range(2):
            length = int(generator.integers(1, 8))
            tokens = np.concatenate([prompt, generator.integers(0, 50, length)])
            found.append(TrainSample(tokens, np.ones(length, np.float32), attempt=number))
    return found


@pytest.mark.parametrize("share_below", [0.0, 1.0])
@pytest.mark.parametrize("num_dp", [1, 3])
def test_whole_attempts_stand_in_one_micro_batch_and_each_counts_once(num_dp: int, share_below: float) -> None:
    samples = pairs(11)
    options: dict[str, Any] = {"align": 2, "max_tokens": 40, "whole_attempts": True, "share_below": share_below}
    (batch,) = pack(samples, num_dp=num_dp, loss_mean=LossMean.token, **options)
    found = list(micro_batches(batch))
    assert len(found) > num_dp
    for micro in found:
        assert micro.attempt_sizes
        assert sum(micro.attempt_sizes) == len(micro.cu_seqlens) - 1
        if micro.sample_ids:
            assert [samples[i].attempt for i in micro.sample_ids[::2]] == [
                samples[i].attempt for i in micro.sample_ids[1::2]
            ]
            assert set(micro.attempt_sizes) == {2}
        assert (micro.prefixes is not None) == (bool(share_below) and bool(micro.sample_ids))
    assert sorted(i for micro in found for i in micro.sample_ids) == [*range(22)]
    weights = dict[int | None, float].fromkeys(range(11), 0.0)
    for micro in found:
        starts = [*micro.cu_seqlens]
        for number, i in enumerate(micro.sample_ids):
            weights[samples[i].attempt] += micro.loss_weights[starts[number] : starts[number + 1]].sum(dtype=np.float64)
    assert list(weights.values()) == pytest.approx([1 / 11] * 11, abs=1e-7)  # fp32 weights


def test_a_pair_that_does_not_fit_is_refused() -> None:
    with pytest.raises(SlimeError, match=r"samples 0 to 1 belong together and have \d+ tokens, the cap is 16"):
        pack(pairs(1), num_dp=1, align=1, max_tokens=16, loss_mean=LossMean.token, whole_attempts=True)
