"""From rewarded groups to sequences to train on."""

import numpy as np

from slime.config.schema import AlgoConfig
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
    good, bad = to_train_samples([GROUP], AlgoConfig(normalize_std=False), version=4)
    assert good.advantages is not None
    assert bad.advantages is not None
    assert good.advantages.tolist() == [0.5] * 3
    assert bad.advantages.tolist() == [-0.5]


def test_tokens_and_logprobs_are_those_of_prompt_and_response() -> None:
    good, _ = to_train_samples([GROUP], AlgoConfig(), version=4)
    assert good.tokens.tolist() == [5, 6, 7, 1, 2, 3]
    assert good.rollout_logprobs is not None
    np.testing.assert_array_equal(good.rollout_logprobs, np.float32([-0.5, -1.0, -1.5]))


def test_tokens_of_older_weights_are_told_apart() -> None:
    good, bad = to_train_samples([GROUP], AlgoConfig(), version=4)
    assert good.is_current is not None
    assert bad.is_current is not None
    assert good.is_current.tolist() == [0, 1, 1]
    assert bad.is_current.tolist() == [1]
