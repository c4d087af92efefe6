"""Suggestions: the name that was meant, or the list where nobody can know."""

import pytest

from slime.errors import did_you_mean, nearest

CLUSTERS = ["h100x128", "h100x256", "h100x8", "h200x2", "h200x2-split", "local", "local2"]


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("locl", CLUSTERS, "local"),
        ("h200x2-spilt", CLUSTERS, "h200x2-split"),
        ("temprature", ["temperature", "top_p"], "temperature"),
        ("tensor_parallel_size", ["tensor_model_parallel_size", "context_parallel_size"], "tensor_model_parallel_size"),
        ("adam_beta", ["adam_beta1", "adam_eps"], "adam_beta1"),
        ("GRPO", ["grpo", "gspo"], "grpo"),
        ("h100x512", CLUSTERS, None),  # another size is no slip
        ("qwen3-8b", ["qwen3-4b", "qwen3-tiny"], None),
        ("brevit", ["math", "arithmetic"], None),
        ("--model", ["--help", "--version"], None),
    ],
)
def test_only_what_is_near_is_suggested(name: str, known: list[str], meant: str | None) -> None:
    assert nearest(name, known) == meant


def test_the_list_is_as_one_writes_it() -> None:
    assert did_you_mean("brevit", ["math", "dapo"], "reward=") == "Choose one of: reward=dapo, reward=math."
    assert did_you_mean("mth", ["math", "dapo"], "reward=") == "Did you mean 'reward=math'?"
    assert did_you_mean("dynamic", ["dynamic-sampling", "none"]) == "Did you mean 'dynamic-sampling'?"
