"""The names that display, report and alarm look for are those that rollout and trainer write."""

from slime.algo.stages import objective_of
from slime.config.schema import AlgoConfig
from slime.observe.metrics import (
    ENTROPY,
    HELD_OUT,
    LENGTH,
    LOGPROB_DIFF,
    LOSS,
    REWARD,
    REWARD_STD,
    TRUNCATED,
    ZERO_VARIANCE,
)
from slime.sampling.evaluate import of_evaluation
from slime.sampling.stats import group_stats, zero_variance
from slime.types import Group, Prompt, Sample, Verdict


def test_rewards():
    prompt = Prompt("0/0", (), (1,))
    groups = [Group(prompt, [Sample(prompt, 0, verdict=Verdict.of(0.5))])]
    stats = group_stats(groups)
    assert stats[REWARD] == 0.5
    assert stats[LENGTH] == stats[REWARD_STD] == stats[TRUNCATED] == 0.0
    assert zero_variance(groups)[ZERO_VARIANCE] == 1.0
    assert of_evaluation(stats)[HELD_OUT] == 0.5


def test_loss_and_log_prob_difference():
    objectives = [objective_of(AlgoConfig(name=name)) for name in ("sft", "grpo")]
    found = [objective.metrics([column.name for column in objective.needs]) for objective in objectives]
    sft, grpo = ({f"train/{name}" for name in (*each.means, *each.token_sums)} for each in found)
    assert {LOSS, ENTROPY} <= sft & grpo
    assert LOGPROB_DIFF in grpo
