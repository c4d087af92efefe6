"""Which fields of config.json need no reader."""

from __future__ import annotations

import pytest
from transformers import PreTrainedConfig

from slime import plugins
from slime.config.hf import read_hf_config
from slime.config.paths import resolve
from slime.errors import SlimeError
from slime.models.config_reader import ConfigReader

IGNORED = {
    "_name_or_path": "somewhere/else",
    "_attn_implementation_autoset": True,
    "_commit_hash": "0123",
    "architectures": ["AnyForCausalLM"],
    "auto_map": {"AutoConfig": "configuration.Config"},
    "chunk_size_feed_forward": 0,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
    "max_length": 20,
    "output_attentions": True,
    "return_dict": True,
    "temperature": 1.0,
    "top_k": 50,
    "transformers_version": "4.1.0",
    "use_cache": True,
}


def test_what_transformers_writes_into_any_file_needs_no_reader() -> None:
    ConfigReader(IGNORED).finish()
    of_every_model = PreTrainedConfig().to_dict()
    ConfigReader({name: value for name, value in of_every_model.items() if name != "model_type"}).finish()


def test_no_family_minds() -> None:
    folders = sorted(resolve("pkg://slime_plugin_glm4/assets").glob("*-tiny"))
    assert folders
    for folder in folders:
        hf = read_hf_config(str(folder))
        bridge = plugins.load().models.create(hf["model_type"])
        assert bridge.transformer_config({**IGNORED, **hf}) == bridge.transformer_config(hf)


@pytest.mark.parametrize("field", ["logit_softcapping", "output_scale", "attention_temperature"])
def test_a_field_that_may_change_the_model_is_refused(field: str) -> None:
    with pytest.raises(SlimeError, match=f"'{field}: 2.0' is not supported"):
        ConfigReader({field: 2.0}).finish()
