"""Of which kind the fields of a Hugging Face `config.json` are, by their names, which are the same in all families."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

MAX_COUNT = 10**9
"""Of any size of a model, so that nothing is counted up to a mistyped one."""
_MAX_NUMBER = 1e30


class WrongField(NamedTuple):
    """A value of another kind than its field's; `name` with those of the objects around it: `rope_scaling.factor`."""

    name: str
    wanted: str
    value: object


def wrong_fields(hf: Mapping[str, Any]) -> Iterator[WrongField]:
    """Fields whose values no model can have. Of a field that is not known, nothing is said."""
    for name, value in hf.items():
        for kind in _KINDS:
            if name in kind.names and not kind.holds(value):
                yield WrongField(name, kind.wanted, value)
        if name in _OF_ROTARY and isinstance(value, dict):
            for wrong in wrong_fields(value):
                yield wrong._replace(name=f"{name}.{wrong.name}")


def are_token_ids(value: object) -> bool:
    """Whether it is a token id, a list of them, or none."""
    ids = value if isinstance(value, list) else [value]
    return value is None or all(_is_count(each) for each in ids)


class _Kind(NamedTuple):
    wanted: str
    holds: Callable[[object], bool]
    names: frozenset[str]


def _is_count(value: object, least: int = 0) -> bool:
    return type(value) is int and least <= value <= MAX_COUNT


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= _MAX_NUMBER  # type: ignore[operator]


def _are_texts(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(each, str) for each in value))


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OF_ROTARY = _names("rope_parameters rope_scaling full_attention sliding_attention")
_KINDS = (
    _Kind(
        f"a whole number from 1 to {MAX_COUNT:,}",
        lambda value: _is_count(value, 1),
        _names(
            "hidden_size intermediate_size vocab_size max_position_embeddings num_attention_heads num_key_value_heads"
            " moe_intermediate_size n_routed_experts num_experts num_local_experts num_experts_per_tok n_group"
            " topk_group kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim index_n_heads index_head_dim"
            " index_topk"
        ),
    ),
    _Kind(
        "a whole number, or null",
        lambda value: value is None or _is_count(value),
        _names(
            "head_dim q_lora_rank num_nextn_predict_layers n_shared_experts first_k_dense_replace sliding_window"
            " sliding_window_pattern _sliding_window_pattern max_window_layers index_topk_freq index_skip_topk_offset"
            " original_max_position_embeddings num_labels"
        ),
    ),
    _Kind(
        "a positive number",
        lambda value: _is_number(value) and value != 0,
        _names(
            "rms_norm_eps rope_theta rope_local_base_freq query_pre_attn_scalar partial_rotary_factor factor beta_fast"
            " beta_slow low_freq_factor high_freq_factor routed_scaling_factor"
        ),
    ),
    _Kind("a number", _is_number, _names("initializer_range attention_dropout mscale mscale_all_dim")),
    _Kind(
        "true or false",
        lambda value: value is None or isinstance(value, bool),
        _names(
            "tie_word_embeddings attention_bias use_qk_norm norm_topk_prob use_sliding_window rope_interleave"
            " rope_interleaved"
        ),
    ),
    _Kind("a text", lambda value: isinstance(value, str), _names("model_type rope_type type hidden_act")),
    _Kind("a list of texts", _are_texts, _names("architectures layer_types mlp_layer_types")),
    _Kind("a token id or a list of them", are_token_ids, _names("bos_token_id eos_token_id pad_token_id")),
    _Kind(
        "an object",
        lambda value: value is None or isinstance(value, dict),
        _names("rope_parameters rope_scaling full_attention sliding_attention quantization_config id2label"),
    ),
)
