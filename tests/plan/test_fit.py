"""`slime plan --fit`: what it proposes fits, the users' layout is among it, and the words it prints give that plan."""

from __future__ import annotations

import json

import pytest

from slime.__main__ import main
from slime.config.compose import examine
from slime.errors import SlimeError
from slime.plan.fit import fit
from slime.plan.memory import most
from slime.plugins import load

FIVE = ["glm5.2@h100x256", "deepseek-r1@h100x128", "glm4.5@h100x64", "glm4.7-flash@h100x8", "glm4-9b@h100x8"]


def words_of(recipe: str) -> list[str]:
    model, cluster = recipe.split("@")
    return [f"+model={model}", f"+cluster={cluster}"]


@pytest.mark.parametrize("recipe", FIVE)
def test_the_first_choice_of_the_five_fits(recipe: str) -> None:
    words = words_of(recipe)
    composed = examine(words)
    fitted = fit(composed, load())
    assert fitted.num_tried < 400, "a few milliseconds each: `benchmarks/startup.py` has the seconds"
    first, found = fitted.candidates[0], fitted.candidates
    assert not first.is_given
    assert [one.total for one in found] == sorted(one.total for one in found)
    [given] = [one for one in found if one.is_given]
    assert given.grid == composed.memory.grid if composed.memory else False
    for candidate in found:
        typed = examine([*words, *candidate.words])
        assert typed.problems == []
        assert typed.memory is not None
        assert typed.memory.grid == candidate.grid
        assert max(map(most, typed.memory.devices)) == max(map(most, candidate.memory.devices))
        assert max(map(most, typed.memory.hosts)) == max(map(most, candidate.memory.hosts))


def test_without_a_recipe_a_layout_is_found_for_a_config_that_cannot_be() -> None:
    words = ["+model=glm4.7-flash", "+cluster=h100x16", "recipe=none"]
    composed = examine(words)
    assert any("memory a device" in str(problem) for problem in composed.problems)
    first, *_, given = fit(composed, load()).candidates
    assert given.is_given
    assert given.problems == composed.problems
    assert examine([*words, *first.words]).problems == []


def test_other_mistakes_of_the_config_are_not_the_layouts_fault() -> None:
    composed = examine([*words_of("glm4-9b@h100x8"), "reward.name=dapoo"])
    [problem] = composed.problems
    assert "dapoo" in str(problem)
    assert fit(composed, load()).candidates
    unread = examine([*words_of("glm4-9b@h100x8"), "rollout.sampling.top_p=2"])
    with pytest.raises(SlimeError, match="must be at most 1"):
        fit(unread, load())


def test_nothing_fits_a_single_host() -> None:
    composed = examine(["+model=glm4.5", "+cluster=h100x8", "recipe=none"])
    with pytest.raises(SlimeError, match="no layout of this model fits"):
        fit(composed, load())


def test_a_cpu_has_nothing_to_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "+model=glm4-tiny", "+cluster=local", "--fit"]) == 2
    assert "--fit needs the memory of a GPU. Choose a cluster of GPUs" in capsys.readouterr().err


def test_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words_of("glm4-9b@h100x8"), "--fit", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["given"] for one in found["candidates"]].count(True) == 1
    first = found["candidates"][0]
    assert first["words"][0] == "train.megatron.tensor_model_parallel_size=1"
    assert first["sizes"]["dp"] == 8
