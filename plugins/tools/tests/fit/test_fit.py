"""`slime plan --fit`: what it proposes fits, the users' layout is among it, and the words it prints give that plan."""

from __future__ import annotations

import json

import pytest

from slime.__main__ import main
from slime.compose.compose import examine
from slime.errors import SlimeError
from slime.plugins import load
from slime_testing.verbs import check_verb
from slime_tools.fit.candidate import engine_changes
from slime_tools.fit.search import fit
from slime_tools.memory.estimate import GpuMemory
from slime_tools.memory.memory_plan import most

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
    assert fitted.rank is not None
    assert 1 <= fitted.rank <= fitted.num_layouts
    assert [one.total for one in found] == sorted(one.total for one in found)
    [given] = [one for one in found if one.is_given]
    assert isinstance(composed.memory, GpuMemory)
    assert given.grid == composed.memory.plan.grid
    for candidate in found:
        assert {"generation", "publish"} <= candidate.seconds.keys()
        if not candidate.is_given:
            assert candidate.grid.ep * candidate.grid.etp <= 64
            assert candidate.grid.ep == 1 or 2 * candidate.grid.ep <= candidate.memory.model["num_moe_experts"]
        typed = examine([*words, *candidate.words])
        assert typed.problems == []
        assert isinstance(typed.memory, GpuMemory)
        plan = typed.memory.plan
        assert plan.grid == candidate.grid
        assert max(map(most, plan.devices)) == max(map(most, candidate.memory.devices))
        assert max(map(most, plan.hosts)) == max(map(most, candidate.memory.hosts))


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
    with pytest.raises(SlimeError, match="at most 1, got 2"):
        fit(unread, load())


@pytest.mark.parametrize(
    "words", [["+model=qwen2.5-0.5b", "+cluster=h200x1"], ["+model=llama3.2-1b", "+cluster=h100x1"]]
)
def test_one_device_has_one_layout_with_packs_of_several_sizes(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = fit(examine(words), load()).candidates
    assert {one.grid.world_size for one in found} == {1}
    [proposed] = [one for one in found if not one.is_given]
    assert examine([*words, *proposed.words]).problems == []
    assert main(["plan", "--fit", *words]) == 0
    shown = capsys.readouterr().out
    if found[0].is_given:
        assert "none that was tried is faster than the layout that the config has" in shown
    else:
        assert "\n  train.max_tokens_per_micro_batch=" in shown


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
    sizes = first["sizes"]
    assert sizes["tp"] == 1
    assert sizes["dp"] * sizes["pp"] * sizes["cp"] == 8


def test_the_users_layout_has_its_rank_and_experts_are_not_cut_into_slivers(capsys: pytest.CaptureFixture[str]) -> None:
    """GLM-4.5's experts have 1,536 columns: 24 on each of 64 devices, fewer than a kernel's narrowest tile."""
    composed = examine(words_of("glm4.5@h100x64"))
    fitted = fit(composed, load())
    sizes = {rank.group.devices_per_engine for one in fitted.candidates for rank in one.memory.engines.values()}
    assert 64 not in sizes
    assert isinstance(composed.memory, GpuMemory)
    changes = list(engine_changes(composed.topology.groups, composed.memory.plan.model))
    assert {one["rollout.engines.default.devices_per_engine"] for one in changes[1:]} <= {1, 2, 4, 8, 16, 32}
    assert main(["plan", *words_of("glm4-9b@h100x8"), "--fit"]) == 0
    shown = capsys.readouterr().out
    assert "* is number " in shown
    assert "the longest 8,672" in shown


@pytest.mark.parametrize("name", ["plan --fit", "probe"])
def test_contract(name: str) -> None:
    check_verb(name)


def test_another_gpu_has_other_layouts_before_the_given_one() -> None:
    """On PCIe what is exchanged costs more beside what is computed, and on slower products recomputation does."""
    words = ["+model=qwen2.5-7b", "+cluster=rtx4090x8"]
    ours, others = (fit(examine([*words, *more]), load()) for more in ([], ["cluster.gpu=h100"]))
    assert [(one.grid, one.words) for one in ours.candidates] != [(one.grid, one.words) for one in others.candidates]
    assert ours.rank is not None
    assert others.rank is not None
    assert ours.rank > others.rank
    assert all(slow.total > fast.total for slow, fast in zip(ours.candidates, others.candidates, strict=True))


def test_without_a_gpu_there_is_nothing_to_order_layouts_by() -> None:
    with pytest.raises(SlimeError, match=r"cluster.gpu: --fit needs the rates of a GPU. Set cluster.gpu to a name of"):
        fit(examine(["+model=glm4-9b", "+cluster=h100x8", "cluster.gpu=null"]), load())


def test_a_memory_of_another_gpu_is_told_beside_the_layouts(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "+model=qwen2.5-0.5b", "+cluster=h100x1", "--fit"]
    assert main([*words, "cluster.device_memory_mb=46068"]) == 0
    assert "is 46,068, but h100 has 81,559: seconds would be another GPU's" in capsys.readouterr().out
    assert main(words) == 0
    assert "another GPU" not in capsys.readouterr().out
