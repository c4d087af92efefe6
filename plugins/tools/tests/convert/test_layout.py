"""Which ranks a layout needs, by Megatron-core's own rules."""

from __future__ import annotations

import re

import pytest

from slime import plugins
from slime.config.hf import read_hf_config
from slime.errors import SlimeError
from slime_tools.convert.layout import check_layout, least_ranks, parse, ranks_to_start

# The conversions of the reference recipes, and that of GLM-4.5 for 16 ranks.
RECIPES = {
    "pkg://slime_plugin_glm5/assets/GLM-5.2": (
        "tensor_model_parallel_size=8 pipeline_model_parallel_size=2 num_layers_in_last_pipeline_stage=40 "
        "expert_model_parallel_size=16",
        32,
    ),
    "pkg://slime_plugin_deepseek_v3/assets/DeepSeek-R1": (
        "pipeline_model_parallel_size=8 num_layers_in_first_pipeline_stage=7 num_layers_in_last_pipeline_stage=6 "
        "expert_model_parallel_size=4",
        32,
    ),
    "pkg://slime_plugin_glm4/assets/GLM-4.5": (
        "tensor_model_parallel_size=8 pipeline_model_parallel_size=2 expert_model_parallel_size=8",
        16,
    ),
    "pkg://slime_plugin_glm4/assets/GLM-4.7-Flash": (
        "tensor_model_parallel_size=4 pipeline_model_parallel_size=2 num_layers_in_first_pipeline_stage=24 "
        "num_layers_in_last_pipeline_stage=23 expert_model_parallel_size=4",
        8,
    ),
}


def check(folder: str, words: str, num_ranks: int) -> None:
    hf = read_hf_config(folder)
    check_layout(parse(words.split()), num_ranks, hf, plugins.load().models.create(hf["model_type"]))


@pytest.mark.parametrize("folder", RECIPES)
def test_conversions_of_the_recipes(folder: str) -> None:
    words, num_ranks = RECIPES[folder]
    assert least_ranks(parse(words.split())) == num_ranks
    check(folder, words, num_ranks)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pipeline_model_parallel_size=2", "47"),
        ("tensor_model_parallel_size=3", "heads"),
        ("expert_model_parallel_size=3", "experts"),
    ],
)
def test_layout_that_does_not_fit_the_model_is_refused(words: str, message: str) -> None:
    with pytest.raises(SlimeError, match=message):
        check("pkg://slime_plugin_glm4/assets/GLM-4.7-Flash", words, 12)


@pytest.mark.parametrize(
    ("folder", "words", "num_ranks", "says"),
    [
        (
            "glm5/assets/GLM-5.2",
            "pipeline_model_parallel_size=2",
            2,
            "model family glm_moe_dsa: a pipeline stage",
        ),
        (
            "glm4/assets/GLM-4.5",
            "pipeline_model_parallel_size=16",
            16,
            "--layout pipeline_model_parallel_size: 92 layers cannot be divided into 16 equal pipeline parts. "
            "Choose another size, or give --layout num_layers_in_last_pipeline_stage=2",
        ),
    ],
)
def test_rules_of_the_family_and_their_ways_out_are_those_of_the_conversion(
    folder: str, words: str, num_ranks: int, says: str
) -> None:
    package, _, rest = folder.partition("/")
    with pytest.raises(SlimeError, match=re.escape(says)):
        check(f"pkg://slime_plugin_{package}/{rest}", words, num_ranks)


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ("", 1),
        ("tensor_model_parallel_size=4", 4),  # experts are cut as attention is
        (
            "tensor_model_parallel_size=4 expert_model_parallel_size=2",
            8,
        ),  # as in a run: whole experts would train wrongly
        ("tensor_model_parallel_size=2 expert_model_parallel_size=2 expert_tensor_parallel_size=2", 4),
        ("tensor_model_parallel_size=3 expert_model_parallel_size=2", 6),
    ],
)
def test_experts_share_the_ranks_of_attention(words: str, ranks: int) -> None:
    assert least_ranks(parse(words.split())) == ranks


def test_processes_beyond_the_layout_are_whole_copies_of_it() -> None:
    layout = parse(["tensor_model_parallel_size=4"])
    assert [ranks_to_start(layout, processes) for processes in (1, 4, 7, 8)] == [4, 4, 4, 8]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("tensor_model_parallel=2", "Did you mean 'tensor_model_parallel_size'"),
        ("tensor_model_parallel_size", "is not a number above 0. Write it as tensor_model_parallel_size=2"),
        ("tensor_model_parallel_size=0", "is not a number above 0"),
        ("context_parallel_size=2", "'context_parallel_size' is no size of a layout"),
    ],
)
def test_other_words_are_refused(word: str, message: str) -> None:
    with pytest.raises(SlimeError, match=message):
        parse([word])
