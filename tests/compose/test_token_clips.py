"""A token clip over several optimizer steps, of a mixture of experts without routing replay, is told in the plan."""

from __future__ import annotations

import pytest

from slime.compose.compose import examine

EXPERTS, DENSE = ["+model=glm4-moe-tiny", "+cluster=local"], ["+model=glm4-tiny", "+cluster=local"]
STEPS = "train.steps_per_rollout=4"
SAYS = (
    "algo.name=grpo: clips the ratio of single tokens over 4 optimizer steps a rollout, which routers of experts make "
    "noisy without routing replay. Choose algo=gspo, whose ratio is that of a sequence, or train.routing_replay=true "
    "(docs/algorithms.md)."
)


def warnings(*words: str) -> list[str]:
    composed = examine(words)
    assert composed.problems == []
    return [str(warning) for warning in composed.warnings]


def test_it_is_one_line_of_the_plan() -> None:
    assert warnings(*EXPERTS, STEPS) == [SAYS]
    assert "\n" not in SAYS


@pytest.mark.parametrize(
    "words",
    [
        ["train.steps_per_rollout=2"],
        ["train.epochs_per_rollout=2"],
        [STEPS, "algo=dapo"],
        [STEPS, "algo=dr_grpo"],
        [STEPS, "algo=rloo"],
        [STEPS, "algo=ppo"],
        [STEPS, "algo=reinforce_pp"],
        [STEPS, "algo.importance=mask", "algo.importance_high=5"],
    ],
)
def test_every_clip_of_tokens_over_several_steps_is_told(words: list[str]) -> None:
    [warning] = warnings(*EXPERTS, *words)
    assert warning.startswith("algo.name=grpo: clips the ratio of single tokens over ")
    assert ("algo=gspo" in warning) is ("algo=ppo" not in words), "which has no critic"


def test_nobody_with_a_teacher_is_sent_to_an_objective_without_one() -> None:
    served = ["algo=opd", "algo.options.teacher_url=http://127.0.0.1:1"]
    [warning] = warnings(*EXPERTS, STEPS, *served)
    assert warning.endswith("without routing replay. Set train.routing_replay=true (docs/algorithms.md).")
    assert warnings(*EXPERTS, STEPS, *served, "train.routing_replay=true") == []


@pytest.mark.parametrize(
    "words",
    [
        EXPERTS,
        [*DENSE, STEPS],
        [*EXPERTS, STEPS, "train.routing_replay=true"],
        *([*EXPERTS, STEPS, f"algo={name}"] for name in ("gspo", "cispo", "sapo", "dppo")),
        [*EXPERTS, "algo=sft"],
    ],
)
def test_nothing_is_told_of_one_step_dense_models_replay_and_other_objectives(words: list[str]) -> None:
    assert warnings(*words) == []


def test_what_it_advises_ends_it() -> None:
    words = ["+model=glm4.5", "+cluster=h100x64"]
    assert warnings(*words) == [SAYS]
    assert warnings(*words, "algo=gspo") == []
    assert warnings(*words, "train.routing_replay=true") == []
