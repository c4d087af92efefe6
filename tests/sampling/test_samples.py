"""From rewarded groups to sequences to train on."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from slime.algo.advantages import EPSILON, GroupMean
from slime.errors import SlimeError
from slime.estimator import Attempt
from slime.sampling.samples import compare, spread, with_numbers
from slime.sampling.stats import lag_stats
from slime.segments import Segment, WeightSpan
from slime.types import Group, Prompt, Sample, Status, Verdict
from tests.advantages import guarded, to_train_samples

GRPO = GroupMean(normalize_std=True)

PROMPT = Prompt("0/1", (), (5, 6, 7))


def sample(index: int, verdict: Verdict, tokens: list[int], spans: list[WeightSpan]) -> Sample:
    logprobs = [-0.5 * token for token in tokens]
    segment = Segment(PROMPT.tokens, tokens, logprobs, [1] * len(tokens), spans)
    return Sample(PROMPT, index, [segment], Status.COMPLETED, verdict=verdict)


GROUP = Group(
    PROMPT,
    [
        sample(0, Verdict.of(1.0), [1, 2, 3], [WeightSpan(3, 1), WeightSpan(4, 2)]),
        sample(1, Verdict.timeout("slow"), [1], [WeightSpan(4, 1)]),
        sample(2, Verdict.of(0.0), [4], [WeightSpan(4, 1)]),
    ],
)


def test_a_failed_reward_takes_no_part() -> None:
    """Advantages of rewards 1 and 0: mean 0.5, standard deviation 0.5 (of the values, not of the samples)."""
    good, bad = to_train_samples([GROUP], GroupMean(normalize_std=False), 4, None)
    assert good.columns["advantages"].tolist() == [0.5] * 3
    assert bad.columns["advantages"].tolist() == [-0.5]


def test_tokens_and_logprobs_are_those_of_prompt_and_response() -> None:
    good, _ = to_train_samples([GROUP], GRPO, 4, None)
    assert good.tokens.tolist() == [5, 6, 7, 1, 2, 3]
    np.testing.assert_array_equal(good.columns["rollout_logprobs"], np.asarray([-0.5, -1.0, -1.5], np.float32))


def test_segments_have_the_row_of_their_prompt() -> None:
    """For the columns that an objective reads from the data set."""
    prompt = Prompt("0/2", (), (5, 6, 7), metadata={"weight": 0.5})
    groups = [GROUP, Group(prompt, [replace(each, prompt=prompt) for each in GROUP.samples])]
    assert [each.row for each in to_train_samples(groups, GRPO, 4, None)] == [{}, {}, {"weight": 0.5}, {"weight": 0.5}]


def test_numbers_that_engines_tell_become_columns_and_means() -> None:
    """Of the response's tokens alone; what was sampled before anybody asked for them has 0. The rest is for layers."""
    samples = to_train_samples([GROUP], GRPO, 4, None)
    first = replace(samples[0], recorded={"certainty": np.float32([9, 9, 9, 0.5, 0.25]), "routes": np.ones((5, 2))})
    [told, silent], means = with_numbers([first, samples[1]], ["certainty"])
    assert told.columns["certainty"].tolist() == [0.5, 0.25, 0]
    assert silent.columns["certainty"].tolist() == [0]
    assert told.recorded.keys() == {"routes"}
    assert means == {"rollout/certainty": pytest.approx((0.5 + 0.25) / 4)}
    masked = replace(first, loss_mask=np.float32([0, 1, 0]))
    assert with_numbers([masked], ["certainty"])[1] == {"rollout/certainty": 0.25}
    assert with_numbers(samples, []) == (samples, {})
    several = replace(first, recorded={"kept": np.int32([[9, 9], [9, 9], [9, 9], [4, 7], [5, 0]])})
    assert with_numbers([several], ["kept"])[1] == {"rollout/kept": (2 + 1 + 0) / 3}, "how many a token has"


def test_tokens_of_older_weights_are_told_apart() -> None:
    good, bad = to_train_samples([GROUP], GRPO, 4, None)
    assert good.columns["is_current"].tolist() == [0, 1, 1]
    assert bad.columns["is_current"].tolist() == [1]


def test_tokens_on_keys_of_older_weights_are_not_of_the_current_ones() -> None:
    """What samples them has the version that is trained, and with other keys and values other log-probs: also of what
    is left of a span that is cut."""
    mixed = [WeightSpan(4, 1), WeightSpan(4, 3, is_mixed=True), WeightSpan(4, 1)]
    whole, cut = (sample(index, Verdict.of(float(index)), [1, 2, 3, 4, 5], [*mixed]) for index in range(2))
    cut.segments[0].cut(3)
    found = to_train_samples([Group(PROMPT, [whole, cut])], GRPO, 4, None)
    assert [each.columns["is_current"].tolist() for each in found] == [[1, 0, 0, 0, 1], [1, 0, 0]]
    assert [each.loss_mask.tolist() for each in found] == [[1] * 5, [1] * 3], "they are trained on all the same"


@pytest.mark.parametrize(
    ("now", "limit", "masks"),
    [(4, 1, [[1, 1, 1], [1]]), (4, 0, [[0, 1, 1], [1]]), (5, 1, [[0, 1, 1], [1]]), (9, None, [[1, 1, 1], [1]])],
)
def test_tokens_that_lag_too_far_are_masked(now: int, limit: int | None, masks: list[list[int]]) -> None:
    samples = to_train_samples([GROUP], GRPO, now, limit)
    assert [sample.loss_mask.tolist() for sample in samples] == masks
    assert [sample.num_tokens for sample in samples] == [6, 4], "the text stays whole"


def lagging(rewards: list[float], whole: list[bool]) -> Group:
    """Samples of two tokens, the first too old for a lag of 2; of some the second too."""
    spans = [[WeightSpan(0, 2)] if old else [WeightSpan(0, 1), WeightSpan(4, 1)] for old in whole]
    pairs = enumerate(zip(rewards, spans, strict=True))
    return Group(PROMPT, [sample(index, Verdict.of(reward), [2, 3], of) for index, (reward, of) in pairs])


@pytest.mark.parametrize("normalize_std", [True, False])
def test_a_sample_that_lags_whole_is_left_out_and_not_compared_with(normalize_std: bool) -> None:
    """What is trained on stays balanced, whichever samples are old: the advantages sum up to 0."""
    group = lagging([1.0, 0.0, 1.0, 0.0, 0.5], [True, True, True, False, False])
    left = to_train_samples([group], GroupMean(normalize_std=normalize_std), 4, 2)
    advantages = [each.columns["advantages"][each.loss_mask != 0].tolist() for each in left]
    scale = 0.125**0.5 + EPSILON if normalize_std else 1.0  # the deviation of 0 and 0.5, divided by n - 1
    assert advantages == [pytest.approx([value / scale]) for value in (-0.25, 0.25)]
    assert [each.loss_mask.tolist() for each in left] == [[0, 1], [0, 1]]


def test_a_group_left_with_one_sample_teaches_nothing_and_is_counted() -> None:
    lone, both = lagging([1.0, 0.0], [True, False]), lagging([1.0, 0.0], [False, False])
    assert len(to_train_samples([lone, both], GRPO, 4, 2)) == 2
    assert lag_stats([lone, both], 4, 2)["rollout/weight_lag_masked_groups"] == 1
    assert lag_stats([lone, both], 4, None)["rollout/weight_lag_masked_groups"] == 0


def ended(rewards: list[float], statuses: list[Status], spans: list[WeightSpan] | None = None) -> Group:
    made = [
        sample(index, Verdict.of(reward), [2, 3], spans or [WeightSpan(4, 2)]) for index, reward in enumerate(rewards)
    ]
    for each, status in zip(made, statuses, strict=True):
        each.status = status
    return Group(PROMPT, made)


@pytest.mark.parametrize(
    ("groups", "now", "told"),
    [
        ([GROUP], 9, "of 3 samples 2 over 4 versions old, 1 without a value. Raise rollout.max_weight_lag"),
        (
            [Group(PROMPT, [sample(0, Verdict.of(1.0), [1], [WeightSpan(4, 1)])])],
            4,
            "of 1 samples 1 in groups with fewer than 2 that could be compared. Raise rollout.samples_per_prompt",
        ),
        (
            [Group(PROMPT, [sample(0, Verdict.of(0.0), [], []), sample(1, Verdict.of(0.0), [], [])])],
            4,
            "of 2 samples 2 empty. See in the run's samples what the model answers",
        ),
        (
            [Group(PROMPT, [sample(0, Verdict.timeout("slow"), [1], [WeightSpan(4, 1)])] * 2)],
            4,
            "of 2 samples 2 without a value. See in the run's samples why rewards give none",
        ),
        (
            [ended([1.0, 0.0], [Status.TRUNCATED, Status.TRUNCATED])],
            4,
            r"of 2 samples 2 cut off \(algo.mask_truncated\). Raise rollout.sampling.max_response_tokens",
        ),
        (
            [
                Group(PROMPT, [sample(0, Verdict.of(1.0), [1], [WeightSpan(4, 1)])]),
                ended([1.0, 0.0, 0.5], [Status.TRUNCATED] * 3),
            ],
            4,
            r"of 4 samples 1 in groups with fewer than 2 that could be compared, 3 cut off",
        ),
    ],
    ids=["old", "alone", "empty", "without a value", "cut off", "two causes"],
)
def test_a_step_without_a_token_to_learn_from_says_why(groups: list[Group], now: int, told: str) -> None:
    with pytest.raises(SlimeError, match=f"weight version {now}: no token to learn from: {told}"):
        to_train_samples(groups, GRPO, now, 4, mask_truncated=True)


def test_truncated_samples_are_compared_with_and_teach_nothing() -> None:
    """Of rewards 1, 0 and 0.5 the mean is 0.5, whoever was cut off; a group that was cut off whole is no part of it."""
    cut, done = Status.TRUNCATED, Status.COMPLETED
    groups = [ended([1.0, 0.0, 0.5], [done, cut, done]), ended([1.0, 0.0], [cut, cut])]
    plain = GroupMean(normalize_std=False)
    left = to_train_samples(groups, plain, 4, None, mask_truncated=True)
    assert [each.columns["advantages"].tolist() for each in left] == [[0.5, 0.5], [0.0, 0.0]]
    assert [each.attempt for each in left] == [0, 2]
    assert all(each.loss_mask.all() for each in left)
    assert len(to_train_samples(groups, plain, 4, None)) == 5


def test_a_sample_that_only_truncated_ones_can_be_compared_with_is_trained_on() -> None:
    [left] = to_train_samples(
        [ended([1.0, 0.0], [Status.COMPLETED, Status.TRUNCATED])], GRPO, 4, None, mask_truncated=True
    )
    assert left.columns["advantages"].tolist() == pytest.approx([0.5 / (0.5**0.5 + EPSILON)] * 2)


def test_an_empty_response_is_left_out() -> None:
    empty = Group(PROMPT, [sample(0, Verdict.of(0.0), [], []), *GROUP.samples])
    assert len(to_train_samples([empty], GRPO, 4, 1)) == 2


def of_lengths(lengths: list[int]) -> list[Group]:
    """A group of two samples for each length."""
    prompts = [Prompt(f"0/{number}", (), (number,)) for number in range(len(lengths))]
    return [
        Group(prompt, [Sample(prompt, index, [Segment(prompt.tokens, [1] * (length + index))]) for index in range(2)])
        for prompt, length in zip(prompts, lengths, strict=True)
    ]


def tokens_by_step(groups: list[Group], num_steps: int) -> list[int]:
    samples = [len(sample.segments[0].tokens) for group in groups for sample in group.samples]
    return [int(part.sum()) for part in np.array_split(samples, num_steps)]


def test_groups_are_spread_over_optimizer_steps_by_their_lengths() -> None:
    """As over-sampling leaves them: continued groups, the long ones, first."""
    groups = of_lengths(list(range(3200, 0, -100)))
    assert tokens_by_step(groups, 4)[0] > 6 * tokens_by_step(groups, 4)[-1]
    for version in range(20):
        ordered = spread(groups, 4, version)
        assert sorted(group.id for group in ordered) == sorted(group.id for group in groups)
        assert ordered == spread(groups, 4, version), "the same after a resume"
        tokens = tokens_by_step(ordered, 4)
        assert max(tokens) <= 1.02 * min(tokens)


def test_no_step_gets_the_longest_group_again_and_again() -> None:
    groups = of_lengths([1000, 500, 200, 100])
    firsts = [spread(groups, 4, version)[0].id for version in range(400)]
    assert all(80 < firsts.count(group.id) < 120 for group in groups)  # of 400 draws 100 +- 20


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_groups_that_do_not_divide_are_spread_too(count: int) -> None:
    groups = of_lengths([10 * (number + 1) for number in range(count)])
    assert sorted(group.id for group in spread(groups, 3, 1)) == [f"0/{number}" for number in range(count)]


def test_one_step_keeps_the_order() -> None:
    groups = of_lengths([10, 500, 20, 100])
    assert spread(groups, 1, 7) == groups


class ByToken:
    """Of each loss token its number, and of a lone sample its reward."""

    min_samples = 1

    def advantages(self, groups: Sequence[Sequence[Attempt]]) -> Sequence[Sequence[np.ndarray]]:
        return [[np.arange(attempt.num_loss_tokens) + attempt.reward for attempt in group] for group in groups]


def test_advantages_of_tokens_are_those_of_loss_tokens_over_all_segments() -> None:
    """What a program wrote, and what is too old, has none and takes none."""
    first = Segment(
        (5, 6),
        [1, 2, 3, 4],
        [-0.5] * 4,
        [1, 1, 0, 1],
        [WeightSpan(1, 1), WeightSpan(4, 1), WeightSpan(None, 1), WeightSpan(4, 1)],
    )
    old = Segment((5,), [7], [-0.5], [1], [WeightSpan(1, 1)])
    second = Segment((5, 6), [8, 9], [-0.5] * 2, [0, 1], [WeightSpan(None, 1), WeightSpan(4, 1)])
    lone = Sample(PROMPT, 0, [first, old, second], Status.COMPLETED, verdict=Verdict.of(10.0))
    samples = to_train_samples([Group(PROMPT, [lone])], ByToken(), 4, 2)
    assert [each.columns["advantages"].tolist() for each in samples] == [[0, 10, 0, 11], [0, 12]]
    assert [each.loss_mask.tolist() for each in samples] == [[0, 1, 0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("[[1.0]]", r"gave \[1\] advantages, not \[2\]"),
        ("[[1.0, float('nan')]]", r"gave nan for a sample of 1 loss tokens, not one finite number"),
        ("[[1.0, [1.0, 2.0]]]", r"gave \[1\.0, 2\.0\] for a sample of 1 loss tokens"),
        ("1 / 0", r"advantages raised ZeroDivisionError: division by zero \(<string>:1"),
    ],
)
def test_an_estimator_that_errs_is_named(answer: str, told: str) -> None:
    class Wrong(ByToken):
        def advantages(self, groups: Sequence[Sequence[Attempt]]) -> Any:
            return eval(answer)

    with pytest.raises(SlimeError, match=f"estimator 'odd' of slime-odd 1.2: {told}.*algo.advantage=<name>"):
        to_train_samples([GROUP], Wrong(), 4, None)


class Seeing:
    """Keeps what it is asked, and says nothing of it."""

    min_samples = 1

    def __init__(self) -> None:
        self.asked: list[list[Attempt]] = []

    def advantages(self, groups: Sequence[Sequence[Attempt]]) -> Sequence[Sequence[float]]:
        self.asked = [[*group] for group in groups]
        return [[0.0 for _ in group] for group in groups]


def test_an_estimator_sees_the_sample_and_its_reward_less_the_penalties_of_all_its_segments() -> None:
    """Of a sample that was cut off, of which nothing is learnt, nothing is taken."""
    parts = [Segment((5,), [1, 2], [-0.5] * 2, [1, 1], [WeightSpan(4, 2)]) for _ in range(2)]
    first = Sample(PROMPT, 0, parts, Status.COMPLETED, verdict=Verdict.of(2.0, style=0.5))
    whole, cut = (sample(index, Verdict.of(1.0), [3], [WeightSpan(4, 1)]) for index in (1, 2))
    cut.status, seeing = Status.TRUNCATED, Seeing()
    compared = compare([Group(PROMPT, [first, whole, cut])], 1, 4, None, mask_truncated=True)
    assert [sequence.attempt for sequence in compared.sequences] == [0, 0, 1]
    compared.advantages(guarded(seeing), {0: 0.25, 1: 0.5, 2: -0.125})
    [asked] = seeing.asked
    assert [attempt.reward for attempt in asked] == [1.25, 1.125, 1.0]
    assert [attempt.sample for attempt in asked] == [first, whole, cut]
    assert asked[0].sample.verdict == Verdict.of(2.0, style=0.5), "the reward itself stays"
    assert asked[0].segments == (2, 2)
