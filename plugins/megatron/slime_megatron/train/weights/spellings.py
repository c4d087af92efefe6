"""Words of config.json and tokenizer_config.json that transformers 4 and 5 read alike. Version 5 reads the older words,
too; version 4 misses the newer ones, or refuses the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime.config.hf import QUANTIZATION

_PLAIN = {"default", None}
_OUTSIDE = ("rope_theta", "partial_rotary_factor")
"""Rotary fields that version 4 reads beside `rope_scaling`, not in it."""
_CLASSES = {"TokenizersBackend": "PreTrainedTokenizerFast"}
"""Classes of tokenizers that version 5 has renamed and still finds by their older name."""


def exported_config(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """The config.json of weights in one `dtype`, none of them quantised."""
    kept = {name: value for name, value in config.items() if name != QUANTIZATION}
    dtypes = {"dtype": dtype, "torch_dtype": dtype}  # without the older name some serve fp16, or load fp32
    return kept | older_rotary(config) | older_experts(config) | dtypes


def older_experts(config: Mapping[str, Any]) -> dict[str, Any]:
    """The number of experts by the name that versions 4 and 5.0 read where 5.12 saves another."""
    count = config.get("num_local_experts")
    is_said = count is None or any(name in config for name in ("num_experts", "n_routed_experts"))
    return {} if is_said else {"num_experts": count}


def older_rotary(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields for what `rope_parameters` says, by the rules of version 5: a `rope_scaling` beside it holds, and a
    base inside wins over one beside."""
    parameters, scaling = (_fields(config, name) for name in ("rope_parameters", "rope_scaling"))
    if isinstance(parameters.get("full_attention"), dict):
        return _of_layers(parameters["full_attention"] | scaling, _fields(parameters, "sliding_attention"))
    return _outside(scaling) if scaling else _of(parameters)


def _fields(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    return config[name] if isinstance(config.get(name), dict) else {}


def _of_layers(whole: Mapping[str, Any], local: Mapping[str, Any]) -> dict[str, Any]:
    """Version 4 has one scaling, which is the global layers'; where local ones are scaled there are no words for it."""
    if _kind(local) not in _PLAIN:
        return {}
    return _of(whole) | ({"rope_local_base_freq": local["rope_theta"]} if "rope_theta" in local else {})


def _of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    if _kind(parameters) in _PLAIN:
        return _outside(parameters)
    scaling = {name: value for name, value in parameters.items() if name not in _OUTSIDE}
    return _outside(parameters) | {"rope_scaling": scaling}


def _outside(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: parameters[name] for name in _OUTSIDE if parameters.get(name) is not None}


def _kind(parameters: Mapping[str, Any]) -> Any:
    return parameters.get("rope_type", parameters.get("type"))


def older_tokenizer(config: Mapping[str, Any]) -> dict[str, Any]:
    """A tokenizer_config.json in words that both read; equal to `config` where it has none of the newer."""
    said = dict(config)
    if isinstance(said.get("extra_special_tokens"), list):
        said["additional_special_tokens"] = said.pop("extra_special_tokens")
    if (name := said.get("tokenizer_class")) in _CLASSES:
        said["tokenizer_class"] = _CLASSES[name]
    return said
