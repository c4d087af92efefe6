"""The names that display, report and alarm look for are those that rollout and trainer write."""

import pytest

from slime.observe.metrics import HELD_OUT, LOGPROB_DIFF, LOSS, REWARD
from slime.rollout.stats import group_stats
from slime.types import Group, Prompt, Sample, Verdict


def test_rewards():
    prompt = Prompt("0/0", (), (1,))
    stats = group_stats([Group(prompt, [Sample(prompt, 0, verdict=Verdict.of(0.5))])])
    assert stats[REWARD] == 0.5
    assert REWARD.replace("rollout/", "eval/") == HELD_OUT  # as slime.rollout.evaluate renames them


@pytest.mark.slow  # imports Megatron
def test_loss_and_log_prob_difference():
    from slime.train import metrics

    names = {f"train/{name}" for name in metrics.SFT_MEANS}  # as Session.train prefixes them
    assert LOSS in names & {f"train/{name}" for name in metrics.RL_MEANS}
    assert LOGPROB_DIFF in {f"train/{name}" for name in metrics.ENGINE_TOKEN_SUMS}
