"""Published models of 0.1 to 8 B parameters plan on one GPU and on a host of eight, of 24, 80 and 141 GB."""

from __future__ import annotations

import pytest

from slime.compose.compose import examine
from slime.errors import SlimeError
from slime.plugins import load
from slime_tools.fit.search import fit

HOSTS = ("rtx4090x1", "rtx4090x8", "h100x1", "h100x8", "h200x1", "h200x8")
MODELS = (
    "smollm2-135m", "smollm2-360m", "smollm2-1.7b", "llama3.2-1b", "llama3.2-3b", "llama3.1-8b",
    "qwen2.5-0.5b", "qwen2.5-coder-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b",
    "r1-distill-qwen-1.5b", "r1-distill-qwen-7b", "gemma3-270m", "gemma3-1b",
)  # fmt: skip
TOO_LARGE = [(model, "rtx4090x1") for model in MODELS if model.endswith(("-3b", "-7b", "-8b"))]
"""Weights in bf16 and gradients in fp32 alone are 18 GB at 3 B parameters, and SGLang keeps 2 GB while they train."""


@pytest.mark.parametrize(
    ("model", "cluster"), [(model, host) for model in MODELS for host in HOSTS if (model, host) not in TOO_LARGE]
)
def test_a_small_model_has_a_plan(model: str, cluster: str) -> None:
    composed = examine([f"+model={model}", f"+cluster={cluster}"])
    assert composed.problems == []
    assert not [warning for warning in composed.warnings if warning.where == "memory a device"]


@pytest.mark.parametrize(("model", "cluster"), TOO_LARGE)
def test_a_model_that_is_too_large_is_told_so(model: str, cluster: str) -> None:
    problems = examine([f"+model={model}", f"+cluster={cluster}"]).problems
    assert problems[0].where == "memory a device"
    assert ("Set train.lora.rank=32" in problems[0].todo) == model.endswith("-3b")


@pytest.mark.parametrize("model", [model for model, _ in TOO_LARGE if model.endswith("-3b")])
def test_what_the_message_names_trains_adapters_of_3_billion_on_one_gpu_of_24_gb(model: str) -> None:
    words = [f"+model={model}", "+cluster=rtx4090x1"]
    way = examine(words).problems[0].todo.partition(": ")[0].removeprefix("Set ").split()
    assert way[0] == "train.lora.rank=32"
    assert examine([*words, *way]).problems == []
    roomy = examine([*words, "train.lora.rank=32", "train.max_tokens_per_micro_batch=2048"])
    assert roomy.problems == []
    assert not [warning for warning in roomy.warnings if warning.where == "memory a device"]
    with pytest.raises(
        SlimeError, match=r"no layout of this model fits\. Set train\.lora\.rank=32.* Or use more hosts"
    ):
        fit(examine(words), load())
