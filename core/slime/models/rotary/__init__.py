"""Rotary embeddings: keywords. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime.errors import SlimeError
from slime.models.config_reader import ConfigReader


def keywords(reader: ConfigReader, *, default_percent: float) -> dict[str, Any]:
    """Rotary embeddings without scaling, as `GPTModel` keywords; both spellings of config.json.

    transformers 5 writes `rope_parameters`; before, `rope_theta` and `partial_rotary_factor` stood alone.
    """
    parameters, _, base = rope_parameters(reader, "default")
    percent = reader.get("partial_rotary_factor", default_percent)
    return {
        "position_embedding_type": "rope",
        "rotary_percent": parameters.get("partial_rotary_factor", percent),
        "rotary_base": base,
    }


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
