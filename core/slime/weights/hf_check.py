"""Whether a Hugging Face checkpoint is one of the model: its headers are read, none of its values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from slime.config.hf import NUM_LAYERS, NUM_NEXTN_LAYERS, read_hf_config
from slime.errors import SlimeError, nearest
from slime.models.mapping import WeightMapping
from slime.weights.hf_files import HfFiles

LOADED = {"F32": 4, "BF16": 2, "F16": 2}
"""The types of tensors that are loaded, by safetensors' names, and their bytes."""
_LAYER = re.compile(r"^model\.layers\.(\d+)\.")


def check_tensors(files: HfFiles, mapping: WeightMapping) -> None:
    """Whether a checkpoint has the tensors of the model and no others, in dtypes that can be loaded.

    Raises:
        SlimeError: it has not.
    """
    _check_dtypes(files, mapping.hf_names & files.tensors.keys())  # first, as the scales of FP8 are strange names
    _check_names(files, mapping)


def _check_dtypes(files: HfFiles, names: Iterable[str]) -> None:
    for name in sorted(names):
        found = files.tensors[name]
        if found.dtype not in LOADED:
            raise SlimeError(
                f"'{name}' has dtype {found.dtype}, not one of {', '.join(sorted(LOADED))}",
                where=str(files.folder / found.file),
                todo=f"Convert FP8 by 'slime convert fp8-to-bf16 {files.folder} {files.folder}-BF16', and take that.",
            )


def _check_names(files: HfFiles, mapping: WeightMapping) -> None:
    """Refuse a checkpoint that lacks a tensor or holds one that nobody asked for."""
    expected = mapping.hf_names
    beyond = _layers_left_out(files.folder, mapping)
    missing = sorted(expected - files.tensors.keys() - mapping.optional_names)
    unexpected = sorted(
        name
        for name in files.tensors.keys() - expected - mapping.ignored - mapping.copies.keys()
        if not ((layer := _LAYER.match(name)) and int(layer[1]) in beyond)
    )
    if missing and mapping.draft_names == set(missing):
        raise SlimeError(
            f"the multi-token prediction layer is missing, all of its {len(missing)} tensors",
            where=str(files.folder),
            todo="If the checkpoint was saved without it, set num_nextn_predict_layers to 0 in its config.json.",
        )
    if missing:
        raise _name_error(files, missing, "is missing", unexpected)
    if unexpected:
        raise _name_error(files, unexpected, "belongs to no part of the model", sorted(expected))


def _layers_left_out(folder: Path, mapping: WeightMapping) -> set[int]:
    """Layers that the checkpoint's own config.json announces, for decoding or prediction, and the model lacks."""
    hf = read_hf_config(str(folder))
    announced = hf[NUM_LAYERS] + (hf.get(NUM_NEXTN_LAYERS) or 0)
    return set(range(announced)) - {int(layer[1]) for name in mapping.hf_names if (layer := _LAYER.match(name))}


def _name_error(files: HfFiles, names: list[str], fault: str, others: list[str]) -> SlimeError:
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    close = nearest(names[0], others)
    hint = f" The nearest name is '{close}'." if close else ""
    return SlimeError(
        f"the tensor '{names[0]}'{more} {fault}",
        where=str(files.folder),
        todo=f"Check that the checkpoint and its config.json belong together.{hint}",
    )
