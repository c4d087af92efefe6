"""What a sequence's attention is beside its other work, from config.json."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slime import plugins
from slime.compose.compose import examine
from slime.config.hf import config_folder, read_hf_config
from slime.config.schema import SlimeConfig
from slime.models.blocks import Attention
from slime.plan.flops import ForwardFlops, attention
from slime.sizes.model import keywords_of
from slime.sizes.parameters import weights_of
from slime.train.bins import Shape

FAMILIES = {
    "deepseek-r1": "h100x128",
    "deepseek-v3.2": "h100x128",
    "gemma3-1b": "rtx4090x1",
    "glm4-9b": "h100x8",
    "glm4.5": "h100x64",
    "glm4.7-flash": "h100x8",
    "glm5.2": "h100x256",
    "llama3.1-8b": "h100x8",
    "mimo-7b-rl": "h100x8",
    "qwen2.5-7b": "h100x8",
    "qwen3-30b-a3b": "h100x8",
}


def config(model: str) -> SlimeConfig:
    """Of a model whose weights are not here: its published config.json stands for it."""
    cfg = examine([f"+model={model}", f"+cluster={FAMILIES[model]}"]).cfg
    cfg.model.path = config_folder(cfg.model)
    return cfg


def forward(cfg: SlimeConfig, tokens: float) -> ForwardFlops:
    hf, bridge = read_hf_config(cfg.model.path), plugins.load().models.create(cfg.model.family)
    model = keywords_of(cfg.train.megatron, bridge, hf)
    return ForwardFlops(model, weights_of(model, bridge.weight_mapping(hf)), tokens)


def test_of_a_dense_model() -> None:
    """Multiplications of a token: a layer's matrices and the head; with each key two products."""
    cfg = config("glm4-9b")
    hf = read_hf_config(cfg.model.path)
    hidden, heads, size = hf["hidden_size"], hf["num_attention_heads"], hf["head_dim"]
    matrices = hidden * size * (2 * heads + 2 * hf["num_key_value_heads"]) + 3 * hidden * hf["intermediate_size"]
    rest = matrices * hf["num_hidden_layers"] + hidden * hf["vocab_size"]
    [found] = attention(cfg.model, cfg.train.megatron, plugins.load())
    assert found.flops == pytest.approx(2 * heads * size * hf["num_hidden_layers"] / rest)
    assert found.most_keys == math.inf


def test_experts_that_a_token_does_not_meet_are_no_work() -> None:
    """Attention is as much work as the rest where n / 2 keys are."""
    cfg = config("qwen3-30b-a3b")
    [found] = attention(cfg.model, cfg.train.megatron, plugins.load())
    assert 2 / found.flops == pytest.approx(15_500, rel=0.01)


def test_sparse_attention_is_bounded_but_for_its_indexer() -> None:
    """DeepSeek-V3.2's report: of every query with `index_topk` keys, and of the indexer, whose heads are cheap, with
    all. Only some layers of GLM-5.2 have one."""
    cfg = config("glm5.2")
    hf = read_hf_config(cfg.model.path)
    chosen, all_keys = attention(cfg.model, cfg.train.megatron, plugins.load())
    assert (chosen.most_keys, all_keys.most_keys) == (hf["index_topk"], math.inf)
    latents = hf["num_attention_heads"] * (2 * hf["kv_lora_rank"] + hf["qk_rope_head_dim"]) * hf["num_hidden_layers"]
    indexers = sum(kind == "full" for kind in hf["indexer_types"])
    of_a_key = hf["index_n_heads"] * hf["index_head_dim"] * indexers
    assert all_keys.flops / chosen.flops == pytest.approx(of_a_key / latents)


def test_most_layers_of_gemma3_attend_to_a_window() -> None:
    cfg = config("gemma3-1b")
    hf = read_hf_config(cfg.model.path)
    windowed, whole = attention(cfg.model, cfg.train.megatron, plugins.load())
    assert (windowed.most_keys, whole.most_keys) == (hf["sliding_window"], math.inf)
    of_six = hf["num_hidden_layers"] // hf["sliding_window_pattern"]
    assert windowed.flops / whole.flops == pytest.approx(hf["num_hidden_layers"] / of_six - 1)


@pytest.mark.parametrize("model", FAMILIES)
def test_the_packers_work_is_proportional_to_flops(model: str) -> None:
    """For sequences of 1k to 32k tokens. Both are sums of the same few terms in fp64, each rounded by 1e-16."""
    cfg = config(model)
    shape = Shape(1, 1, 1, 32768, False, attention(cfg.model, cfg.train.megatron, plugins.load()))
    tokens = np.asarray([1024, 2048, 3000, 4096, 8192, 16384, 32768])
    flops = np.asarray([n * forward(cfg, n).whole for n in tokens.tolist()])
    work = shape.work(tokens)
    np.testing.assert_allclose(work / work[0], flops / flops[0], rtol=1e-12)
    assert work[-1] / work[0] > 32


@pytest.mark.parametrize("most", [1, 7, 100, math.inf])
def test_keys_are_those_of_every_query(most: float) -> None:
    """One after another, but for half a key of each that does not meet the most yet: its own."""
    for tokens in (1, 5, 7, 8, 60, 400):
        counted = sum(min(query, most) for query in range(1, tokens + 1)) - min(tokens, most) / 2
        assert Attention(1.0, most).keys(tokens) * tokens == pytest.approx(counted)
        assert Shape(1, 1, 1, 1, False, (Attention(1.0, most),)).work(np.asarray([tokens])) == pytest.approx(
            tokens + counted
        )
    assert Attention(1.0, most).keys(0) == 0
