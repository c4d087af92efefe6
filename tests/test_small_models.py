"""Published models of 0.1 to 8 B parameters plan on one GPU and on a host of eight, of 24, 80 and 141 GB."""

from __future__ import annotations

import pytest

from slime.compose.compose import examine

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
