"""Rotary embeddings: keywords. No torch."""

from __future__ import annotations

from typing import Any

from slime.models.config_reader import ConfigReader

BASE = 10_000.0
"""Of transformers' classes, where config.json says none."""


def keywords(reader: ConfigReader, *, default_percent: float, partial: bool = True) -> dict[str, Any]:
    """Rotary embeddings, plain or scaled as in Llama 3.1 (`rope_type: llama3`), as `GPTModel` keywords.

    Args:
        default_percent: of a head's dimensions, the share that is rotated where config.json does not say it.
        partial: the family's published class heeds another share; otherwise it is refused.
    """
    parameters, kind, base = rope_parameters(reader, "default", "llama3")
    percent = parameters.get("partial_rotary_factor", reader.get("partial_rotary_factor", default_percent))
    if not partial and percent != default_percent:
        said = parameters if parameters.says("partial_rotary_factor") else reader
        said.refuse("partial_rotary_factor", percent, f"The published class rotates {default_percent:g} always.")
    return {
        "position_embedding_type": "rope",
        "rotary_percent": percent,
        "rotary_base": base,
        **(_llama3(reader, parameters) if kind == "llama3" else {}),
    }


def _llama3(reader: ConfigReader, parameters: ConfigReader) -> dict[str, Any]:
    """The scaling of Llama 3.1; Megatron-core takes its factor alone, the rest are constants there."""
    given = {
        "low_freq_factor": (parameters.get("low_freq_factor"), 1.0),
        "high_freq_factor": (parameters.get("high_freq_factor"), 4.0),
        "original_max_position_embeddings": (trained_for(reader, parameters), 8192),
    }
    for name, (value, constant) in given.items():
        if value != constant:
            parameters.refuse(name, value, f"Megatron-core has {constant} alone.")
    return {"rope_scaling": True, "rope_scaling_factor": parameters.get("factor")}


def trained_for(reader: ConfigReader, parameters: ConfigReader) -> Any:
    """The context before it was stretched, the whole context where config.json does not say it."""
    return parameters.get("original_max_position_embeddings", reader.get("max_position_embeddings", None))


def rope_parameters(reader: ConfigReader, *supported: str) -> tuple[ConfigReader, str, float]:
    """Rotary settings, their kind (one of `supported`) and base.

    transformers 5 writes `rope_parameters`; before, `rope_theta`, `rope_scaling` and `partial_rotary_factor` stood
    alone. Where a file has both, transformers and engines take all of `rope_scaling`, and what it lacks of the fields
    that stand alone.
    """
    either = [reader.get(name, None) and name for name in ("rope_scaling", "rope_parameters")]
    parameters = reader.inside(either[0] or "rope_parameters")
    old = parameters.get("type", "default")
    kind = parameters.get("rope_type", old)
    if kind not in supported:
        parameters.refuse(
            "rope_type" if parameters.says("rope_type") else "type", kind, f"Supported: {', '.join(supported)}."
        )
        parameters.skip()
        kind = supported[0]
    return parameters, kind, parameters.get("rope_theta", reader.get("rope_theta", BASE))
