"""A check that a Hugging Face checkpoint is one of the model: its headers are read, of its values those of tied
copies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from slime.config.hf import NUM_LAYERS, NUM_NEXTN_LAYERS, read_hf_config
from slime.errors import SlimeError, nearest
from slime.models.mapping import WeightMapping
from slime.weights.causes import changed_names, quantization
from slime.weights.file_tensors import SINGLE, FileTensor, same_bytes
from slime.weights.hf_files import HfFiles

LOADED = {"F32": 4, "BF16": 2, "F16": 2}
"""The types of tensors that are loaded, by safetensors' names, and their bytes."""
_LAYER = re.compile(r"^model\.layers\.(\d+)\.")
_TABLE = re.compile(r"(?:^|\.)(?:rotary_emb(?:_local)?\.(?:\w+_)?(?:inv_freq|cos_cached|sin_cached)|position_ids)$")
_MASK = re.compile(r"\.(?:self_attn|attn|attention)\.(?:masked_)?bias$")


def check_tensors(files: HfFiles, mapping: WeightMapping) -> None:
    """Check that a checkpoint has the tensors of the model and no others, in dtypes that can be loaded.

    Raises:
        SlimeError: it has not.
    """
    hf = read_hf_config(str(files.folder))
    if problem := quantization(files.folder, hf, files.tensors):  # first, as its scales are strange names
        raise problem
    stand_in(files, mapping)
    _check_dtypes(files, mapping.hf_names & files.tensors.keys())
    _check_names(files, mapping)
    used = {files.tensors[name].file for name in (mapping.hf_names - mapping.draft_names) & files.tensors.keys()}
    if SINGLE in used and len(used) > 1:
        what = f"'{SINGLE}' is one of {len(used)} files of the index, and transformers would read it alone"
        raise SlimeError(what, where=str(files.folder), todo="Give it another name, there and in the index.")
    for copy, name in sorted(mapping.tied.items()):
        one, other = (files.tensors.get(each) for each in (copy, name))
        if one and other and one.dtype == other.dtype and not same_bytes(files.folder, one, other):
            raise untied(files, copy, name)


def stand_in(files: HfFiles, mapping: WeightMapping) -> None:
    """Let the one of two tied tensors that a checkpoint holds be the other, too."""
    for copy, name in mapping.tied.items():
        if name not in files.tensors and copy in files.tensors:
            files.tensors[name] = replace(files.tensors[copy], stored_as=copy)


def untied(files: HfFiles, copy: str, name: str) -> SlimeError:
    """The one line about tensors that are tied and yet differ."""
    what = f"config.json ties '{copy}' to '{name}' (tie_word_embeddings), but their values differ"
    todo = "transformers does not tie them then. To train both, set tie_word_embeddings to false in config.json; if "
    todo += f"'{copy}' is a stale copy, remove it from the safetensors."
    return SlimeError(what, where=str(files.folder), todo=todo)


def is_computed(name: str, tensor: FileTensor) -> bool:
    """Whether a tensor is one that older code stored and every reader computes: rotary tables, positions and causal
    masks, [1, 1, n, n] or the one number behind them."""
    if _MASK.search(name):
        return tensor.shape == () or (len(tensor.shape) == 4 and tensor.shape[:2] == (1, 1))
    return _TABLE.search(name) is not None


def _check_dtypes(files: HfFiles, names: Iterable[str]) -> None:
    for name in sorted(names):
        found = files.tensors[name]
        if found.dtype not in LOADED:
            load = "AutoModelForCausalLM.from_pretrained(..., dtype='bfloat16').save_pretrained(...)"
            is_float = found.dtype == "F64"
            todo = f"Write them in BF16 by transformers: {load}." if is_float else "Name the checkpoint in BF16."
            what = f"'{name}' has dtype {found.dtype}, not one of {', '.join(sorted(LOADED))}"
            raise SlimeError(what, where=str(files.folder / found.file), todo=todo)


def _check_names(files: HfFiles, mapping: WeightMapping) -> None:
    """Refuse a checkpoint that lacks a tensor or holds one that nobody asked for."""
    expected = mapping.hf_names
    beyond = _layers_left_out(files.folder, mapping)
    missing = sorted(expected - files.tensors.keys() - mapping.optional_names)
    known = expected | mapping.ignored | mapping.copies.keys() | mapping.tied.keys()
    unexpected = sorted(
        name
        for name, tensor in files.tensors.items()
        if name not in known
        and not ((layer := _LAYER.match(name)) and int(layer[1]) in beyond)
        and not is_computed(name, tensor)
    )
    if missing and mapping.draft_names == set(missing):
        what = f"the multi-token prediction layer is missing, all of its {len(missing)} tensors"
        todo = "If the checkpoint was saved without it, set num_nextn_predict_layers to 0 in its config.json."
        raise SlimeError(what, where=str(files.folder), todo=todo)
    if cause := changed_names(missing, mapping.tied.keys(), unexpected):
        raise SlimeError(cause[0], where=str(files.folder), todo=cause[1])
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
    todo = f"Check that the checkpoint and its config.json belong together.{hint}"
    return SlimeError(f"the tensor '{names[0]}'{more} {fault}", where=str(files.folder), todo=todo)
