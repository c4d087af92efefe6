"""Keywords of rotary embeddings, up to the frequencies that Megatron-core makes of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from slime.errors import SlimeError
from slime.models.config_reader import ConfigReader
from slime_plugin_transformer import rotary

LLAMA_3_1: dict[str, Any] = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
HEAD_DIM = 128


def keywords(**fields: Any) -> dict[str, Any]:
    return rotary.keywords(ConfigReader(fields), default_percent=1.0)


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
    with pytest.raises(SlimeError, match=f"'rope_type: llama3' with {name}={value} is not supported"):
        keywords(rope_scaling=LLAMA_3_1 | {name: value}, rope_theta=500000.0)
