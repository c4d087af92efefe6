"""Runs that generate for steps to come: what cannot be is refused by its key, and the plan says what will be."""

from __future__ import annotations

import pytest

from slime import plugins
from slime.compose.compose import examine
from slime.plan.model import read_model
from slime.plan.summary import summary

LAPTOP = ["+model=glm4-tiny", "+cluster=local"]
GPUS = ["+model=glm4-9b", "+cluster=h100x8-split"]
AHEAD = "rollout.max_staleness=1"


def refused(*words: str) -> list[str]:
    return [str(problem) for problem in examine(words).problems]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["+model=glm4-9b", "+cluster=h100x8", AHEAD],
            "cluster.placement: lets trainers and engines use the devices in turns, but with "
            "rollout.max_staleness=1 both work at once. Set cluster.placement=disaggregated, or rollout.sglang.",
        ),
        (
            ["+model=glm4-tiny", "+cluster=local-pd", AHEAD],
            "rollout.publish: is retract, but prefill and decode",
        ),
        (
            [*GPUS, AHEAD, "+rollout.sglang.pp_size=2"],
            "rollout.publish: is retract, but engines of pp_size=2 cannot pause requests. Set rollout.publish=abort.",
        ),
        (
            [*GPUS, AHEAD, "rollout.publish=keep", "+rollout.sglang.speculative_algorithm=NGRAM"],
            "rollout.publish: is keep, but engines that draft tokens cannot keep their keys. Set rollout.publish=",
        ),
        ([*LAPTOP, "rollout.publish=abort"], "rollout.publish: does nothing without rollout.max_staleness"),
        ([*LAPTOP, AHEAD, "rollout.over_sampling=2"], "rollout.over_sampling: does nothing with rollout.max_staleness"),
        (
            [*LAPTOP, AHEAD, "rollout.max_weight_lag=2"],
            "rollout.max_weight_lag: does nothing with rollout.max_staleness",
        ),
        ([*LAPTOP, "rollout.max_staleness=-1"], "rollout.max_staleness: must be at least 0 and at most 100, got -1"),
    ],
)
def test_what_cannot_be_is_one_line(words: list[str], says: str) -> None:
    assert any(problem.startswith(says) for problem in refused(*words)), refused(*words)


@pytest.mark.parametrize(
    "words",
    [
        [*LAPTOP, AHEAD],
        [*LAPTOP, AHEAD, "rollout.publish=keep"],
        [*LAPTOP, AHEAD, "algo.importance=mask"],
        ["+model=glm4-tiny", "+cluster=local-pd", AHEAD, "rollout.publish=abort"],
        [*GPUS, AHEAD],
        [*LAPTOP, AHEAD, "cluster.placement=colocated", "rollout.sglang.enable_memory_saver=false"],
    ],
)
def test_what_can_be_is_accepted(words: list[str]) -> None:
    assert refused(*words) == []


def test_the_plan_says_what_it_means() -> None:
    composed = examine([*LAPTOP, "rollout.max_staleness=2", "rollout.publish=keep"])
    installed = plugins.load()
    said = summary(composed, read_model(composed, installed), installed)
    assert said["staleness"] == (
        "up to 64 groups of the next 2 steps are generated while a step trains, no token that is trained on is over 2 "
        "versions old; at a publish, responses go on under the new weights, with the keys and values that they have"
    )
    assert said["importance"].startswith("tokens of older weights: ")
    usual = examine(LAPTOP)
    assert "staleness" not in summary(usual, read_model(usual, installed), installed)
