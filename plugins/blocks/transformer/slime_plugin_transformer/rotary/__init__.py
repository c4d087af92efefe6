"""Rotary embeddings: keywords. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime.errors import SlimeError
from slime.models.config_reader import ConfigReader


def keywords(reader: ConfigReader, *, default_percent: float) -> dict[str, Any]:
    """Rotary embeddings, plain or scaled as in Llama 3.1 (`rope_type: llama3`), as `GPTModel` keywords.

    transformers 5 writes `rope_parameters`; before, `rope_theta`, `rope_scaling` and `partial_rotary_factor` stood
    alone.
    """
    parameters, kind, base = rope_parameters(reader, "default", "llama3")
    percent = reader.get("partial_rotary_factor", default_percent)
    return {
        "position_embedding_type": "rope",
        "rotary_percent": parameters.get("partial_rotary_factor", percent),
        "rotary_base": base,
        **(_llama3(reader, parameters) if kind == "llama3" else {}),
    }


def _llama3(reader: ConfigReader, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The scaling of Llama 3.1; Megatron-core takes its factor alone, the rest are constants there."""
    trained_for = parameters.get("original_max_position_embeddings", reader.get("max_position_embeddings", None))
    fixed = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    for name, value in fixed.items():
        if (given := {"original_max_position_embeddings": trained_for, **parameters}.get(name)) != value:
            raise SlimeError(
                f"'rope_type: llama3' with {name}={given} is not supported",
                where="config.json",
                todo=f"Megatron-core has {value} alone.",
            )
    return {"rope_scaling": True, "rope_scaling_factor": parameters["factor"]}


def rope_parameters(reader: ConfigReader, *supported: str) -> tuple[Mapping[str, Any], str, float]:
    """Rotary settings, their kind (one of `supported`) and base."""
    written = reader.get("rope_parameters", None), reader.get("rope_scaling", None)
    parameters: Mapping[str, Any] = written[0] or written[1] or {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in supported:
        raise SlimeError(
            f"'rope_type: {kind}' is not supported for this model family",
            where="config.json",
            todo=f"Supported: {', '.join(supported)}.",
        )
    if "rope_theta" not in parameters:
        return parameters, kind, reader.get("rope_theta")
    reader.get("rope_theta", None)  # some files say it twice
    return parameters, kind, parameters["rope_theta"]
