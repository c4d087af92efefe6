"""The families' tables of config.json, by what transformers' own config classes and SGLang's models say."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.modeling_rope_utils import RotaryEmbeddingConfigMixin

from slime import plugins
from slime.errors import SlimeError
from slime.models.bridge import PublishedBridge
from slime.models.config_reader import ConfigReader
from slime.models.published import Count, Flag, Positive, Published, Size
from slime_megatron.transformer import rotary
from slime_plugin_mimo import hf as mimo
from slime_testing.published import differences, unknown_reads

mimo.register()
FAMILIES = plugins.load().models.names()


def published_of(family: str) -> Published:
    bridge = plugins.load().models.create(family)
    assert isinstance(bridge, PublishedBridge), family
    return bridge.published


@pytest.mark.parametrize("family", FAMILIES)
def test_tables_are_what_transformers_knows(family: str) -> None:
    assert differences(published_of(family), type(AutoConfig.for_model(family))) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_tables_have_what_the_engine_reads(family: str) -> None:
    assert unknown_reads(published_of(family)) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_the_class_is_the_one_that_transformers_saves(family: str) -> None:
    """SGLang has it by the same name: `unknown_reads` looks it up there."""
    model = AutoModelForCausalLM._model_mapping[type(AutoConfig.for_model(family))]
    assert model.__name__ == published_of(family).architecture


def test_a_field_more_in_a_class_is_noticed() -> None:
    """Also one less, another default, and another type."""
    llama = type(AutoConfig.for_model("llama"))

    class Next(llama):  # type: ignore[misc, valid-type]
        logit_scale: float = 1.0
        mlp_bias: bool = True
        vocab_size: str = "32000"  # type: ignore[assignment]

    found = differences(published_of("llama"), Next)
    assert [sentence.partition("'")[2].partition("'")[0] for sentence in found] == [
        "mlp_bias", "vocab_size", "vocab_size", "logit_scale",
    ]  # fmt: skip
    without = differences(published_of("llama"), PreTrainedConfig)
    assert "transformers has no 'vocab_size'" in without


def test_fields_of_all_classes_are_neutral_at_their_defaults() -> None:
    of_all = {field.name: field.default for field in dataclasses.fields(PreTrainedConfig)}
    assert len(of_all) > 5
    ConfigReader(of_all).finish()


def test_the_base_of_rotary_embeddings_is_that_of_all_classes() -> None:
    assert RotaryEmbeddingConfigMixin.default_theta == rotary.BASE


class Config:
    """Of no real family."""

    vocab_size: Size = 32_000
    num_key_value_heads: Size | None = None
    first_k_dense_replace: Count = 3
    rms_norm_eps: Positive = 1e-6
    attention_bias: Flag = True


class Beside:
    rope_is_neox_style: Flag = True
    scale_emb: Positive | None = None


TABLE = Published("MineForCausalLM", Config, Beside)
HF: dict[str, Any] = {"vocab_size": 8, "architectures": ["MineForCausalLM"]}


def read(fields: dict[str, Any]) -> ConfigReader:
    reader = ConfigReader(HF | fields, TABLE)
    for name in ("vocab_size", "num_key_value_heads", "first_k_dense_replace"):
        reader.get(name)
    return reader


def test_what_is_missing_is_the_published_default() -> None:
    reader = read({})
    assert reader.get("first_k_dense_replace", 1) == 3
    assert reader.get("unknown_to_the_class", 1) == 1
    assert TABLE.complete(HF)["attention_bias"] is True
    reader.finish()


@pytest.mark.parametrize("value", [False, None])
def test_off_is_neutral_only_where_it_is_the_default(value: object) -> None:
    """A field of neither class nor engine is."""
    read({"unknown_to_all": value, "attention_bias": True}).finish()
    with pytest.raises(SlimeError, match="'rope_is_neox_style"):
        read({"rope_is_neox_style": value}).finish()
    with pytest.raises(SlimeError, match="'attention_bias"):
        read({"attention_bias": value}).finish()


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(SlimeError) as caught:
        read({"rms_norm_eps": "1e-6", "first_k_dense_replace": True, "attention_bias": 0})
    assert [name for name in Config.__annotations__ if f"'{name}' must be" in str(caught.value)] == [
        "first_k_dense_replace", "rms_norm_eps", "attention_bias",
    ]  # fmt: skip
    reader = read({"attention_bias": False, "logit_scale": 2.0, "scale_emb": 0.5})
    reader.only("scale_emb", None)
    with pytest.raises(SlimeError) as caught:
        reader.finish()
    for shown in ("'attention_bias: False'", "'logit_scale: 2.0'", "'scale_emb: 0.5'", "Supported: None."):
        assert shown in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_an_object_owes_what_the_file_owes() -> None:
    reader = read({"rope_scaling": {"factor": 2.0, "mystery": 1, "nothing": None}})
    inner = reader.inside("rope_scaling")
    assert inner.get("factor") == 2.0
    with pytest.raises(SlimeError, match=r"'rope_scaling\.mystery: 1' is not supported"):
        reader.finish()
    with pytest.raises(SlimeError, match=r"the field 'rope_scaling\.original' is missing"):
        inner.get("original")
    again = read({"rope_scaling": {"factor": 2.0}})
    again.inside("rope_scaling").skip("factor")
    again.finish()


@pytest.mark.parametrize(
    "names",
    [["MineModel"], ["LlamaForCausalLM"], ["LlamaForCausalLM", "MineForCausalLM"]],
)
def test_another_class_is_refused(names: list[str]) -> None:
    with pytest.raises(SlimeError, match=r"'architectures: .*MineForCausalLM"):
        read({"architectures": names})
    for right in (["MineModel", "MineForCausalLM"], ["MineForSequenceClassification"], None, []):
        read({"architectures": right}).finish()
