"""The tensors that the published checkpoint of a config.json has, for estimates before it is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slime import plugins
from slime.config.hf import QUANTIZATION, read_hf_config
from slime.errors import SlimeError
from slime.models.bridge import HfConfig, ModelBridge
from slime.models.mapping import Shard
from slime.sizes.model import keywords_of
from slime.sizes.parameters import shape_of, unknown_parameter
from slime.weights.elsewhere import has_weights
from slime.weights.file_tensors import FileTensor
from slime.weights.hf_files import HfFiles, HfTensors
from slime_megatron.fp8_block.config import Fp8Format
from slime_tools.convert.fp8 import chosen_matrices, narrow_outputs
from slime_tools.convert.schemes import Scheme, scheme_of

_DESCRIBED_IN = "config.json"


def tensors_of(folder: Path, *, in_fp8: bool = False) -> HfTensors:
    """Those of the folder's safetensors, or as its config.json describes them where there are none.

    Args:
        in_fp8: described ones are in FP8: as config.json says, or in blocks of 128 x 128.

    Raises:
        SlimeError: the folder holds a torn checkpoint, or none of an installed family.
    """
    if has_weights(folder):
        return HfFiles(folder)
    wide = HfTensors(folder, {name: _described(shape, "BF16") for name, shape in _shapes(folder)})
    if not in_fp8:
        return wide
    chosen = chosen_matrices(wide)
    outputs = narrow_outputs(wide, fp8_scheme(wide), chosen)
    return HfTensors(folder, {each.name: _described(each.shape, each.dtype) for each in outputs})


def fp8_scheme(files: HfTensors) -> Scheme:
    """What the config.json says of FP8 weights; if it says nothing and they are not there, that of live engines."""
    config = read_hf_config(str(files.folder))
    if QUANTIZATION not in config and not isinstance(files, HfFiles):
        config[QUANTIZATION] = Fp8Format().to_config()
    return scheme_of(config, files)


def model_of(folder: Path) -> tuple[HfConfig, ModelBridge]:
    """The folder's config.json, less what it says of FP8, which families are not asked about; and its family."""
    hf = {key: value for key, value in read_hf_config(str(folder)).items() if key != QUANTIZATION}
    return hf, plugins.load().models.create(hf["model_type"])


def _shapes(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor, second copies too, which many published checkpoints have."""
    hf, bridge = model_of(folder)
    mapping, model = bridge.weight_mapping(hf), keywords_of({}, bridge, hf)
    if unknown := unknown_parameter(mapping):
        what, todo = f"nobody told the size of '{unknown}', and there are no safetensors", "Name a folder with weights."
        raise SlimeError(what, where=str(folder), todo=todo)
    found: dict[str, tuple[int, ...]] = {}
    for entry in mapping.entries:
        if entry.rule.exported:
            found |= zip(entry.hf, entry.rule.layout.hf_shapes(shape_of(entry.rule, model), Shard()), strict=True)
    yield from found.items()
    yield from ((copy, found[name]) for copy, name in mapping.copies.items())


def _described(shape: tuple[int, ...], dtype: str) -> FileTensor:
    return FileTensor(_DESCRIBED_IN, shape, dtype, 0)
