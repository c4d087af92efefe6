"""Kinds of the values of a Hugging Face `config.json`, and the fields that are alike in all families.

A kind is written as in the tables of families (`slime.models.published`): `Size`, `Size | None`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

MAX_COUNT = 10**9
"""The most of any size of a model, so that nothing is counted up to a mistyped one."""
_MAX_NUMBER = 1e30


class WrongField(NamedTuple):
    """A value of another kind than its field's; `name` with those of the objects around it: `rope_scaling.factor`."""

    name: str
    wanted: str
    value: object

    def __str__(self) -> str:
        shown = json.dumps(self.value)
        return f"'{self.name}' must be {self.wanted}, got {shown if len(shown) <= 40 else f'{shown[:40]}...'}"


def wrong_fields(hf: Mapping[str, Any], kinds: Mapping[str, str] | None = None) -> Iterator[WrongField]:
    """Fields whose values no model can have. Of a field that is not among `kinds`, nothing is said."""
    for name, value in hf.items():
        allowed = [_KINDS[kind] for kind in (kinds or _OF_ANY_MODEL).get(name, "").split(" | ") if kind]
        if allowed and not any(kind.holds(value) for kind in allowed):
            yield WrongField(name, ", or ".join(kind.wanted for kind in allowed), value)
        if name in _OF_ROTARY and isinstance(value, dict):
            for wrong in wrong_fields(value):
                yield wrong._replace(name=f"{name}.{wrong.name}")


def are_token_ids(value: object) -> bool:
    ids = value if isinstance(value, list) else [value]
    return value is None or all(_is_count(each) for each in ids)


class _Kind(NamedTuple):
    wanted: str
    holds: Callable[[object], bool]


def _is_count(value: object, least: int = 0) -> bool:
    return type(value) is int and least <= value <= MAX_COUNT


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= _MAX_NUMBER  # type: ignore[operator]


def _are(value: object, holds: Callable[[object], bool]) -> bool:
    return isinstance(value, list) and all(map(holds, value))


_KINDS = {
    "Size": _Kind(f"a whole number from 1 to {MAX_COUNT:,}", lambda value: _is_count(value, 1)),
    "Count": _Kind("a whole number", _is_count),
    "Positive": _Kind("a positive number", lambda value: _is_number(value) and value != 0),
    "Number": _Kind("a number", _is_number),
    "Flag": _Kind("true or false", lambda value: isinstance(value, bool)),
    "Text": _Kind("a text", lambda value: isinstance(value, str)),
    "Texts": _Kind("a list of texts", lambda value: _are(value, lambda each: isinstance(each, str))),
    "Counts": _Kind("a list of whole numbers", lambda value: _are(value, _is_count)),
    "Tokens": _Kind("a token id or a list of them", are_token_ids),
    "Object": _Kind("an object", lambda value: isinstance(value, dict)),
    "None": _Kind("null", lambda value: value is None),
}
_OF_ROTARY = ("rope_parameters", "rope_scaling", "full_attention", "sliding_attention")
_OF_ANY_MODEL: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(["hidden_size", "intermediate_size", "vocab_size", "max_position_embeddings"], "Size"),
        "num_attention_heads": "Size",
        **dict.fromkeys(["num_key_value_heads", "head_dim", "original_max_position_embeddings"], "Size | None"),
        **dict.fromkeys(["num_nextn_predict_layers", "sliding_window", "num_labels"], "Count | None"),
        **dict.fromkeys(["rms_norm_eps", "rope_theta", "rope_local_base_freq", "partial_rotary_factor"], "Positive"),
        **dict.fromkeys(["factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"], "Positive"),
        "attention_factor": "Positive | None",
        **dict.fromkeys(["initializer_range", "attention_dropout", "mscale", "mscale_all_dim"], "Number"),
        **dict.fromkeys(["tie_word_embeddings", "attention_bias", "truncate"], "Flag | None"),
        **dict.fromkeys(["model_type", "rope_type", "type", "hidden_act"], "Text"),
        **dict.fromkeys(["architectures", "layer_types"], "Texts | None"),
        **dict.fromkeys(["bos_token_id", "eos_token_id", "pad_token_id"], "Tokens"),
        **dict.fromkeys((*_OF_ROTARY, "quantization_config", "id2label"), "Object | None"),
    }
)
"""Fields of models whose family is not known, too, such as one that only an engine has."""
