"""Keywords of rotary embeddings, up to the frequencies that Megatron-core makes of them."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import pytest
import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from slime.errors import SlimeError
from slime.models.config_reader import ConfigReader
from slime_megatron.transformer import rotary

LLAMA_3_1: dict[str, Any] = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
HEAD_DIM = 128


def keywords(**fields: Any) -> dict[str, Any]:
    reader = ConfigReader(fields)
    reader.skip("max_position_embeddings")
    found = rotary.keywords(reader, default_percent=1.0)
    reader.finish()
    return found


def expected(factor: float, base: float) -> torch.Tensor:
    """The formula of Llama 3.1's scaling in float64: long waves are slowed, those between blended."""
    plain = base ** -(torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
    share = ((8192 * plain / (2 * torch.pi) - 1.0) / (4.0 - 1.0)).clamp(0.0, 1.0)
    return plain * (share + (1 - share) / factor)


@pytest.mark.parametrize(("factor", "base"), [(8.0, 500000.0), (32.0, 500000.0), (16.0, 1000000.0)])
@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
def test_llama_3_1_has_transformers_frequencies(spelling: str, factor: float, base: float) -> None:
    """Relative differences of fp32's rounding in three steps; without scaling the longest wave is off by its factor."""
    scaling = LLAMA_3_1 | {"factor": factor}
    fields: dict[str, Any] = {"rope_scaling": scaling, "rope_theta": base}
    if spelling == "rope_parameters":
        fields = {"rope_parameters": scaling | {"rope_theta": base}}
    given = keywords(**fields)
    assert given.pop("position_embedding_type") == "rope"
    ours = RotaryEmbedding(HEAD_DIM, given["rotary_percent"], rotary_base=given["rotary_base"],
                           rope_scaling=given["rope_scaling"], rope_scaling_factor=given["rope_scaling_factor"],
                           use_cpu_initialization=True).inv_freq  # fmt: skip
    config = LlamaConfig(
        hidden_size=4096, num_attention_heads=32, rope_parameters=scaling | {"rope_theta": base}, vocab_size=8
    )
    for theirs in (LlamaRotaryEmbedding(config).inv_freq.double(), expected(factor, base)):
        assert ((ours.double() - theirs) / theirs).abs().max() < 5e-7


def test_plain_ones_have_no_scaling() -> None:
    assert "rope_scaling" not in keywords(rope_theta=10000.0)


@pytest.mark.parametrize(("name", "value"), [("low_freq_factor", 2.0), ("original_max_position_embeddings", 4096)])
def test_what_megatron_core_cannot_is_refused(name: str, value: float) -> None:
    with pytest.raises(SlimeError, match=rf"'rope_scaling\.{name}: {value}' is not supported"):
        keywords(rope_scaling=LLAMA_3_1 | {name: value}, rope_theta=500000.0)


BESIDE: dict[str, Any] = {"rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"}, "rope_scaling": LLAMA_3_1}


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 30000.0},
        {"rope_parameters": {"rope_theta": 40000.0}, "rope_theta": 30000.0},
        {"rope_parameters": {"rope_type": "default"}, "rope_theta": 30000.0},
        {"rope_parameters": {"rope_type": "default", "type": "linear"}, "rope_scaling": {}},
        BESIDE,
        BESIDE | {"rope_theta": 30000.0},
        {},
    ],
)
def test_two_places_are_read_as_transformers_does(fields: dict[str, Any]) -> None:
    """A base inside the object wins; all of `rope_scaling` does; 10,000 is the base where none is said."""
    theirs = LlamaConfig(**deepcopy(fields), max_position_embeddings=16384).rope_parameters
    given = keywords(**fields, max_position_embeddings=16384)
    assert given["rotary_base"] == theirs["rope_theta"]
    assert given.get("rope_scaling", False) is (theirs["rope_type"] == "llama3")


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"rope_type": "yarn", "factor": 4.0}, "rope_scaling.rope_type: yarn"),
        ({"type": "dynamic", "factor": 4.0}, "rope_scaling.type: dynamic"),
        ({"rope_type": "default", "factor": 4.0}, "rope_scaling.factor: 4.0"),
        (LLAMA_3_1 | {"beta_fast": 32}, "rope_scaling.beta_fast: 32"),
        ({**LLAMA_3_1, "type": "yarn", "mystery": 0}, "rope_scaling.mystery: 0"),
    ],
)
def test_what_nobody_reads_inside_is_refused(parameters: dict[str, Any], named: str) -> None:
    with pytest.raises(SlimeError, match=re.escape(f"'{named}' is not supported")):
        keywords(rope_scaling=parameters, rope_theta=500000.0)


def test_a_share_of_the_head_is_refused_where_the_class_has_none() -> None:
    for fields in ({"partial_rotary_factor": 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.5}}):
        assert keywords(**fields)["rotary_percent"] == 0.5
        reader = ConfigReader(fields)
        rotary.keywords(reader, default_percent=1.0, partial=False)
        with pytest.raises(SlimeError, match=r"partial_rotary_factor: 0\.5' is not supported"):
            reader.finish()
