"""What a sequence's attention is beside its other work, from config.json."""

import math

import pytest

from slime import plugins
from slime.compose.compose import examine
from slime.config.hf import config_folder, read_hf_config
from slime.config.schema import SlimeConfig
from slime.plan.flops import attention_length


def config(model: str, cluster: str) -> SlimeConfig:
    """Of a model whose weights are not here: its published config.json stands for it."""
    cfg = examine([f"+model={model}", f"+cluster={cluster}"]).cfg
    cfg.model.path = config_folder(cfg.model)
    return cfg


def test_of_a_dense_model() -> None:
    """Multiplications of a token: a layer's matrices and the head; attention to half of the sequence, twice."""
    cfg = config("glm4-9b", "h100x8")
    hf = read_hf_config(cfg.model.path)
    hidden, heads, size = hf["hidden_size"], hf["num_attention_heads"], hf["head_dim"]
    matrices = hidden * size * (2 * heads + 2 * hf["num_key_value_heads"]) + 3 * hidden * hf["intermediate_size"]
    rest = matrices * hf["num_hidden_layers"] + hidden * hf["vocab_size"]
    a_token_of_context = heads * size * hf["num_hidden_layers"]  # two products, of half of it
    assert attention_length(cfg, plugins.load()) == pytest.approx(rest / a_token_of_context)


def test_experts_that_a_token_does_not_meet_are_no_work() -> None:
    assert attention_length(config("qwen3-30b-a3b", "h100x8"), plugins.load()) == pytest.approx(15_500, rel=0.01)


def test_sparse_attention_is_less_work() -> None:
    """A query meets the chosen keys alone, in the longest sequence too."""
    assert 150_000 < attention_length(config("glm5.2", "h100x256"), plugins.load()) < math.inf
