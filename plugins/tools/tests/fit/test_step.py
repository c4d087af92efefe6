"""The seconds of a plan are those of `--fit` for the layout that the config has."""

from __future__ import annotations

import pytest

from plugins.tools.tests.memory.test_trainer import plan_of
from slime.compose.compose import examine
from slime.plan.document import document
from slime.plugins import load
from slime_tools.fit.generation import GENERATION
from slime_tools.fit.search import fit
from slime_tools.fit.step import TRAINING, StepSeconds, _in_words


@pytest.mark.parametrize("words", [["+model=glm4-9b", "+cluster=h100x8"], ["+model=qwen3-30b-a3b", "+cluster=h100x8"]])
def test_the_seconds_are_those_of_the_given_layout(words: list[str]) -> None:
    (given,) = [one for one in fit(examine(words), load()).candidates if one.is_given]
    found = StepSeconds(plan_of(*words))
    assert found.total == pytest.approx(given.total, rel=1e-6)
    assert found.seconds[GENERATION] == pytest.approx(given.seconds[GENERATION])
    assert 0 < found.seconds[TRAINING] < found.total
    steps = found.num_steps
    assert f"{steps:,} steps take {_in_words(found.total * steps)}" in found.brief()["seconds"]


@pytest.mark.parametrize("word", ["cluster.gpu=null", "cluster.device_memory_mb=null"])
def test_nothing_is_said_of_a_gpu_that_nobody_knows(word: str) -> None:
    found = StepSeconds(plan_of("+model=glm4-9b", "+cluster=h100x8", word))
    assert (found.brief(), [*found.sections()], found.document()) == ({}, [], {"step_seconds": None})


def test_a_cpu_has_no_estimate() -> None:
    assert document(examine(["+model=glm4-tiny", "+cluster=local"]), load())["step_seconds"] is None


def test_times_are_told_in_the_unit_that_fits() -> None:
    assert [_in_words(each) for each in (1, 119, 7_199, 86_400, 864_000)] == [
        "1.0 seconds",
        "119.0 seconds",
        "120.0 minutes",
        "24.0 hours",
        "10.0 days",
    ]
