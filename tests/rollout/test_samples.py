"""From rewarded groups to sequences to train on."""

import numpy as np
import pytest

from slime.config.schema import AlgoConfig
from slime.errors import SlimeError
from slime.rollout.samples import to_train_samples
from slime.types import Group, Prompt, Sample, Status, Verdict, WeightSpan

PROMPT = Prompt("0/1", (), (5, 6, 7))


def sample(index: int, verdict: Verdict, tokens: list[int], spans: list[WeightSpan]) -> Sample:
    logprobs = [-0.5 * token for token in tokens]
    return Sample(PROMPT, index, tokens, logprobs, [1] * len(tokens), spans, Status.COMPLETED, verdict=verdict)


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
    good, bad = to_train_samples([GROUP], AlgoConfig(normalize_std=False), 4, None)
    assert good.advantages is not None
    assert bad.advantages is not None
    assert good.advantages.tolist() == [0.5] * 3
    assert bad.advantages.tolist() == [-0.5]


def test_tokens_and_logprobs_are_those_of_prompt_and_response() -> None:
    good, _ = to_train_samples([GROUP], AlgoConfig(), 4, None)
    assert good.tokens.tolist() == [5, 6, 7, 1, 2, 3]
    assert good.rollout_logprobs is not None
    np.testing.assert_array_equal(good.rollout_logprobs, np.float32([-0.5, -1.0, -1.5]))


def test_tokens_of_older_weights_are_told_apart() -> None:
    good, bad = to_train_samples([GROUP], AlgoConfig(), 4, None)
    assert good.is_current is not None
    assert bad.is_current is not None
    assert good.is_current.tolist() == [0, 1, 1]
    assert bad.is_current.tolist() == [1]


@pytest.mark.parametrize(
    ("now", "limit", "masks"),
    [(4, 1, [[1, 1, 1], [1]]), (4, 0, [[0, 1, 1], [1]]), (5, 1, [[0, 1, 1], [1]]), (9, None, [[1, 1, 1], [1]])],
)
def test_tokens_that_lag_too_far_are_masked(now: int, limit: int | None, masks: list[list[int]]) -> None:
    samples = to_train_samples([GROUP], AlgoConfig(), now, limit)
    assert [sample.loss_mask.tolist() for sample in samples] == masks
    assert [sample.num_tokens for sample in samples] == [6, 4], "the text stays whole"


def test_a_sample_that_lags_whole_is_left_out_but_was_compared_with() -> None:
    """Rewards 1 and 0 as above: the other's advantage is unchanged."""
    slow = Group(
        PROMPT,
        [
            sample(0, Verdict.of(1.0), [1], [WeightSpan(0, 1)]),
            sample(1, Verdict.of(0.0), [2, 3], [WeightSpan(0, 1), WeightSpan(4, 1)]),
        ],
    )
    (left,) = to_train_samples([slow], AlgoConfig(normalize_std=False), 4, 2)
    assert left.advantages is not None
    assert (left.tokens[3:].tolist(), left.loss_mask.tolist(), left.advantages.tolist()) == ([2, 3], [0, 1], [-0.5] * 2)


def test_a_step_without_a_token_to_learn_from_says_why() -> None:
    with pytest.raises(SlimeError, match=r"weight version 9: no token to learn from.*rollout\.max_weight_lag"):
        to_train_samples([GROUP], AlgoConfig(), 9, 4)


def test_an_empty_response_is_left_out() -> None:
    empty = Group(PROMPT, [sample(0, Verdict.of(0.0), [], []), *GROUP.samples])
    assert len(to_train_samples([empty], AlgoConfig(), 4, 1)) == 2
