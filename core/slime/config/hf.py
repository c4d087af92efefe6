"""Reads a Hugging Face `config.json` without transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime.config.declare import MAX_LAYERS
from slime.config.hf_fields import WrongField, wrong_fields
from slime.config.paths import exists, resolve
from slime.errors import SlimeError

if TYPE_CHECKING:
    from slime.config.schema import ModelConfig

NUM_LAYERS = "num_hidden_layers"
NUM_NEXTN_LAYERS = "num_nextn_predict_layers"
QUANTIZATION = "quantization_config"
"""What a published checkpoint says of weights that are quantised."""
_CLASSIFIER, _CAUSAL = "ForSequenceClassification", "ForCausalLM"
_REWARD_MODEL = "ForRewardModel"
"""Ends the names of classes with heads of their own, which transformers has not; SGLang has those of some families."""
_OWN = "Use the config.json that the model comes with."


def config_folder(model: ModelConfig) -> str:
    """The folder whose config.json describes the model: `model.path`, or the published one while that is missing."""
    return model.config if model.config is not None and not exists(model.path) else model.path


def read_hf_config(path: str, num_layers: int | None = None) -> dict[str, Any]:
    """The parsed `config.json` of a checkpoint folder, cut to its first `num_layers` layers if given.

    Lists with one entry a layer (`layer_types`, ...) are cut with it; a multi-token prediction layer, which works on
    the last layer's output, is left out.

    Raises:
        SlimeError: the folder or file is missing, it is not JSON, a field has a value of another kind than its own, or
            the model has fewer layers.
    """
    file = resolve(path) / "config.json"
    hf = _parse(file)
    if missing := [key for key in ("model_type", NUM_LAYERS) if key not in hf]:
        todo = "Use the config.json of a decoder-only model."
        raise SlimeError(f"'{missing[0]}' is missing", where=str(file), todo=todo)
    layers = hf[NUM_LAYERS]
    if type(layers) is not int or not 1 <= layers <= MAX_LAYERS:
        wrong_layers = WrongField(NUM_LAYERS, f"a number from 1 to {MAX_LAYERS:,}", layers)
        raise SlimeError(str(wrong_layers), where=str(file), todo=_OWN)
    if wrong := [str(each) for each in wrong_fields(hf)]:
        raise SlimeError("; ".join(wrong), where=str(file), todo=_OWN)
    return hf if num_layers is None else _cut(hf, num_layers, file)


def scores(hf: Mapping[str, Any]) -> bool:
    """Whether the model says numbers of a sequence, as reward models do, and writes no text."""
    return any(name.endswith((_CLASSIFIER, _REWARD_MODEL)) for name in hf.get("architectures") or ())


def num_labels(hf: Mapping[str, Any]) -> int:
    """Numbers that a model which `scores` says of a sequence: of transformers' classes two, unless config.json says."""
    if any(name.endswith(_REWARD_MODEL) for name in hf.get("architectures") or ()):
        return 1
    names = hf.get("id2label")
    return len(names) if isinstance(names, dict) else int(hf.get("num_labels") or 2)


def trunk_architectures(hf: Mapping[str, Any]) -> list[str]:
    """The classes, as transformers names them, that have the layers of a model which `scores`, and write text."""
    return [
        # A family with several modalities has another class for text alone.
        name.removesuffix(_CLASSIFIER).removesuffix("Text") + _CAUSAL if name.endswith(_CLASSIFIER) else name
        for name in hf.get("architectures") or ()
    ]


def _parse(file: Path) -> dict[str, Any]:
    if not file.is_file():
        todo = "Name a folder that has the model's config.json, as Hugging Face's have."
        raise SlimeError("there is no config.json", where=str(file.parent), todo=todo)
    try:
        hf = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise SlimeError(f"not JSON ({error})", where=str(file), todo="Fetch the file again.") from error
    if not isinstance(hf, dict):
        raise SlimeError("not a JSON object", where=str(file), todo="Fetch the file again.")
    return hf


def _cut(hf: dict[str, Any], num_layers: int, file: Path) -> dict[str, Any]:
    full = hf[NUM_LAYERS]
    if num_layers > full:
        what = f"model.num_layers is {num_layers}, but the model has {full} layers"
        todo = f"Choose at most {full}, or leave model.num_layers empty."
        raise SlimeError(what, where=str(file), todo=todo)
    per_layer = {key: value for key, value in hf.items() if isinstance(value, list) and len(value) == full}
    cut = hf | {key: value[:num_layers] for key, value in per_layer.items()}
    if num_layers < full and hf.get(NUM_NEXTN_LAYERS):
        cut[NUM_NEXTN_LAYERS] = 0
    return {**cut, NUM_LAYERS: num_layers}
