"""Reads a Hugging Face `config.json` without transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slime.config.paths import resolve
from slime.errors import SlimeError

NUM_LAYERS = "num_hidden_layers"
NUM_MTP_LAYERS = "num_nextn_predict_layers"


def read_hf_config(path: str, num_layers: int | None = None) -> dict[str, Any]:
    """The parsed `config.json` of a checkpoint folder, cut to its first `num_layers` layers if given.

    Lists with one entry a layer (`layer_types`, ...) are cut with it; a multi-token prediction layer, which works on
    the last layer's output, is left out.

    Raises:
        SlimeError: the folder or file is missing, it is not JSON, or it has fewer layers.
    """
    file = resolve(path) / "config.json"
    hf = _parse(file)
    for key in ("model_type", NUM_LAYERS):
        if key not in hf:
            raise SlimeError(
                f"'{key}' is missing", where=str(file), todo="Use the config.json of a decoder-only model."
            )
    return hf if num_layers is None else _cut(hf, num_layers, file)


def _parse(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise SlimeError("there is no config.json", where=str(file.parent), todo="Set model.path to an HF folder.")
    try:
        hf = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SlimeError(f"not JSON ({error})", where=str(file), todo="Fetch the file again.") from error
    if not isinstance(hf, dict):
        raise SlimeError("not a JSON object", where=str(file), todo="Fetch the file again.")
    return hf


def _cut(hf: dict[str, Any], num_layers: int, file: Path) -> dict[str, Any]:
    full = hf[NUM_LAYERS]
    if num_layers > full:
        raise SlimeError(
            f"model.num_layers is {num_layers}, but the model has {full} layers",
            where=str(file),
            todo=f"Choose at most {full}, or leave model.num_layers empty.",
        )
    cut = {key: value[:num_layers] if _per_layer(value, full) else value for key, value in hf.items()}
    if num_layers < full and hf.get(NUM_MTP_LAYERS):
        cut[NUM_MTP_LAYERS] = 0
    return {**cut, NUM_LAYERS: num_layers}


def _per_layer(value: Any, num_layers: int) -> bool:
    return isinstance(value, list) and len(value) == num_layers
