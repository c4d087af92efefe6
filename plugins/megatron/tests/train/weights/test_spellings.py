"""What transformers 5 saves is exported in the words of published checkpoints of before, and it reads them alike.

That version 4 does, too, is measured by `benchmarks/exports.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from slime.config.paths import resolve
from slime_megatron.train.weights.spellings import exported_config, older_experts, older_rotary, older_tokenizer

PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3-4B": ("Qwen3Config", {"rope_theta": 1000000}),
    "GLM-Z1-9B": ("Glm4Config", {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    "Llama-3.1-8B": ("LlamaConfig", {"rope_theta": 500000.0, "rope_scaling": {
        "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3"}}),
    "DeepSeek-V3": ("DeepseekV3Config", {"rope_theta": 10000, "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "type": "yarn"}}),
    "Gemma-3-4B": ("Gemma3TextConfig", {"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": {
        "factor": 8.0, "rope_type": "linear"}}),
}  # fmt: skip
"""Rotary fields of config.json as the models' authors wrote them for version 4."""


@pytest.mark.parametrize("model", PUBLISHED)
def test_rotary_fields_are_as_the_authors_published_them(model: str, tmp_path: Path) -> None:
    kind, fields = PUBLISHED[model]
    config = getattr(transformers, kind)(**json.loads(json.dumps(fields)))
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert "rope_scaling" not in written, "version 5 has words of its own"
    added = older_rotary(written)
    if "type" in fields.get("rope_scaling", {}):
        assert added["rope_scaling"].pop("rope_type") == fields["rope_scaling"]["type"]
    assert added == fields
    (tmp_path / "config.json").write_text(json.dumps(written | added))
    again = type(config).from_pretrained(tmp_path)
    assert again.rope_parameters == config.rope_parameters


def test_what_holds_in_version_5_is_what_version_4_is_told() -> None:
    inside, beside = {"rope_type": "default", "rope_theta": 40000.0}, {"rope_theta": 30000.0}
    linear = {"rope_type": "linear", "factor": 2.0}
    cases = (
        beside | {"rope_parameters": inside},
        beside | {"rope_parameters": inside, "rope_scaling": linear},
        beside | {"rope_parameters": inside, "rope_scaling": linear | {"rope_theta": 50000.0}},
    )
    for case, base in zip(cases, (40000.0, 30000.0, 50000.0), strict=True):
        assert transformers.LlamaConfig(**json.loads(json.dumps(case))).rope_parameters["rope_theta"] == base
        assert (case | older_rotary(case))["rope_theta"] == base


@pytest.mark.parametrize("config", [{}, {"rope_theta": 1e6}, {"rope_theta": 1e6, "rope_scaling": {"factor": 2}}])
def test_an_older_spelling_is_left_alone(config: dict[str, Any]) -> None:
    assert older_rotary(config) == {}


def test_scaled_local_layers_have_no_older_words() -> None:
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    plain = {"rope_type": "default", "rope_theta": 1e4}
    assert older_rotary({"rope_parameters": {"full_attention": plain, "sliding_attention": scaled}}) == {}
    assert older_rotary({"rope_parameters": {"full_attention": scaled, "sliding_attention": plain}})["rope_scaling"]


def test_the_dtype_has_both_names_and_no_quantization_is_left() -> None:
    config = {"torch_dtype": "float8_e4m3fn", "quantization_config": {"quant_method": "fp8"}, "num_hidden_layers": 2}
    assert exported_config(config, "bfloat16") == {
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
        "num_hidden_layers": 2,
    }


def test_a_tokenizer_of_version_5_is_the_same_in_older_words(tmp_path: Path) -> None:
    load = transformers.AutoTokenizer.from_pretrained
    tokenizer = load(resolve("pkg://slime_plugin_llama/assets/llama-tiny"))
    tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    written = json.loads(file.read_text())
    assert (written["tokenizer_class"], type(written["extra_special_tokens"])) == ("TokenizersBackend", list)
    older = older_tokenizer(written)
    assert "extra_special_tokens" not in older, "version 4 takes a table alone, and calls a list `additional`"
    file.write_text(json.dumps(older))
    again, text = load(tmp_path), "<sop>It is 13.<|user|>"
    assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert again.all_special_tokens == tokenizer.all_special_tokens
    assert older_tokenizer(older) == older


def test_the_number_of_experts_has_the_name_that_the_authors_gave_it(tmp_path: Path) -> None:
    """Qwen3-30B-A3B says `num_experts`; transformers 5.12 saves `num_local_experts` in its place."""
    transformers.Qwen3MoeConfig(num_experts=16).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert older_experts(written) == {"num_experts": 16}
    assert "num_experts" not in written
    (tmp_path / "config.json").write_text(json.dumps(written | older_experts(written)))
    assert transformers.Qwen3MoeConfig.from_pretrained(tmp_path).num_experts == 16
    for said in ({"num_experts": 8}, {"n_routed_experts": 8}, {"num_local_experts": None}):
        assert older_experts({"num_local_experts": 16} | said) == {}
