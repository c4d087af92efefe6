"""How a checkpoint says that its weights are FP8, in both spellings that published ones have. No torch.

    fp8                  (quant_method) `weight` in E4M3, `weight_scale_inv` fp32 for each block of 128 x 128
    compressed-tensors   config_groups with a strategy: `weight_scale` for each channel, tensor or block

`slime_megatron.fp8_block.config` is about what live engines take, which is the first alone; this is about what exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from slime.config.hf import QUANTIZATION
from slime.errors import SlimeError
from slime.weights.file_tensors import FileTensor
from slime.weights.hf_files import HfTensors
from slime_megatron.fp8_block.config import BLOCK, SCALE, Fp8Format

FP8 = "F8_E4M3"
_COMPRESSED_SCALE = "_scale"
_SIDE = (".input_scale", ".k_scale", ".v_scale")
"""What the names of scales of activations end with: of no use beside other weights."""


class Strategy(StrEnum):
    """What shares a scale; compressed-tensors' words."""

    tensor = "tensor"
    channel = "channel"
    block = "block"


@dataclass(frozen=True)
class Scheme:
    """How weights are stored.

    Attributes:
        suffix: what a weight's name ends with to name its scales.
        powers_of_two: scales are rounded up to powers of two (`scale_fmt: ue8m0`).
    """

    strategy: Strategy
    suffix: str
    powers_of_two: bool = False

    def block(self, shape: Sequence[int]) -> tuple[int, int]:
        """Rows and columns of such a matrix that share a scale."""
        rows, columns = shape
        of = {Strategy.tensor: (rows, columns), Strategy.channel: (1, columns), Strategy.block: (BLOCK, BLOCK)}
        return of[self.strategy]

    def scales_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the scales of such a matrix, as it is stored."""
        if self.strategy is Strategy.tensor:
            return (1,)
        height, width = self.block(shape)
        return -(-shape[0] // height), -(-shape[1] // width)

    def __str__(self) -> str:
        names = {
            Strategy.tensor: "one scale a tensor",
            Strategy.channel: "one scale a channel",
            Strategy.block: f"blocks of {BLOCK} x {BLOCK}",
        }
        return names[self.strategy]


def scheme_of(config: Mapping[str, Any], files: HfTensors) -> Scheme:
    """What the `quantization_config` of this config.json says.

    Raises:
        SlimeError: there is none, or none that is known.
    """
    where = f"{files.folder / 'config.json'}: {QUANTIZATION}"
    said = config.get(QUANTIZATION)
    if not said:
        raise SlimeError("is missing: this checkpoint is not FP8", where=where, todo="Name a folder with FP8 weights.")
    if said.get("quant_method") == "compressed-tensors":
        return _compressed(said, where)
    if said.get("quant_method") != "fp8" or said.get("fmt", "e4m3") != "e4m3":
        what = f"has quant_method '{said.get('quant_method')}' and fmt '{said.get('fmt')}'"
        raise SlimeError(what, where=where, todo="slime converts 'fp8' in 'e4m3', and 'compressed-tensors'.")
    if not said.get("weight_block_size"):
        suffix = SCALE if any(name.endswith(SCALE) for name in files.tensors) else _COMPRESSED_SCALE
        return Scheme(Strategy.tensor, suffix)
    _check_block(said["weight_block_size"], f"{where}.weight_block_size")
    return Scheme(Strategy.block, SCALE, said.get("scale_fmt") == "ue8m0")


def _compressed(said: Mapping[str, Any], where: str) -> Scheme:
    groups = list(said.get("config_groups", {}).values())
    weights = [group.get("weights") or {} for group in groups]
    for number, each in enumerate(weights):
        if each.get("num_bits") != 8 or each.get("type") != "float" or not each.get("symmetric", True):
            what = f"weights of {each.get('num_bits')} bits, type '{each.get('type')}': not FP8"
            raise SlimeError(what, where=f"{where}.config_groups[{number}]", todo="Name a folder with FP8 weights.")
    strategies = {str(each.get("strategy")) for each in weights}
    known = [str(strategy) for strategy in Strategy]
    if len(strategies) != 1 or not strategies <= set(known):
        what = f"has the strategies {', '.join(sorted(strategies)) or 'of no group'}"
        raise SlimeError(what, where=f"{where}.config_groups", todo=f"slime converts one of {', '.join(known)}.")
    scheme = Scheme(Strategy(strategies.pop()), _COMPRESSED_SCALE)
    if scheme.strategy is Strategy.block:
        _check_block(weights[0].get("block_structure"), f"{where}.config_groups")
    return scheme


def _check_block(block: Any, where: str) -> None:
    if block != [BLOCK, BLOCK]:
        raise SlimeError(f"blocks of {block}", where=where, todo=f"slime converts blocks of {BLOCK} x {BLOCK}.")


def quantized_weights(files: HfTensors, scheme: Scheme) -> dict[str, FileTensor]:
    """The FP8 weights by name, each with the scales that the scheme wants.

    Raises:
        SlimeError: there is none, one has no scales or scales of another shape, or scales belong to no weight.
    """
    weights = {name: tensor for name, tensor in files.tensors.items() if tensor.dtype == FP8}
    for name, tensor in files.tensors.items():
        if tensor.dtype == "F8_E5M2" or (tensor.dtype == FP8 and len(tensor.shape) != 2):
            what = f"'{name}' is {tensor.dtype} of shape {list(tensor.shape)}, not {FP8} of two dimensions"
            raise SlimeError(what, where=str(files.folder), todo="slime converts matrices in E4M3.")
    if not weights:
        todo = "Name a folder with FP8 weights."
        raise SlimeError(f"no tensor is {FP8}, though config.json says so", where=str(files.folder), todo=todo)
    for name, tensor in weights.items():
        _check_scales(files, scheme, name, tensor)
    for name in files.tensors:
        weight = name.removesuffix(scheme.suffix)
        if weight != name and weight not in weights and not name.endswith(_SIDE):
            what = f"the scales '{name}' belong to no FP8 weight"
            raise SlimeError(what, where=str(files.folder), todo="Download the checkpoint again.")
    return weights


def _check_scales(files: HfTensors, scheme: Scheme, name: str, tensor: FileTensor) -> None:
    scales = files.tensors.get(name + scheme.suffix)
    if scales is None:
        what = f"the FP8 weight '{name}' has no scales '{name + scheme.suffix}'"
        raise SlimeError(what, where=str(files.folder), todo="Download the checkpoint again.")
    wanted = scheme.scales_shape(tensor.shape)
    if scales.shape != wanted and not (scheme.strategy is Strategy.tensor and scales.shape == ()):
        others = (Scheme(each, scheme.suffix) for each in Strategy)
        fits = next((f", as {other} has" for other in others if other.scales_shape(tensor.shape) == scales.shape), "")
        what = f"'{name + scheme.suffix}' has shape {list(scales.shape)}{fits}; {scheme} need {list(wanted)}"
        raise SlimeError(what, where=str(files.folder / scales.file), todo="Its config.json is of another checkpoint.")


def is_scale(name: str, weights: Mapping[str, FileTensor], scheme: Scheme) -> bool:
    """Whether a tensor of an FP8 checkpoint is only of use with FP8: scales of weights or activations."""
    return name.endswith(_SIDE) or (name.endswith(scheme.suffix) and name.removesuffix(scheme.suffix) in weights)


def to_config(scheme: Scheme, ignored: Sequence[str], modules: Sequence[str]) -> dict[str, Any]:
    """The `quantization_config` that SGLang, vLLM and transformers read.

    Args:
        ignored: modules that keep their weights, in the first spelling by names or parts of names.
        modules: their whole names, as compressed-tensors wants them.
    """
    if scheme.strategy is Strategy.block:
        return Fp8Format(scheme.powers_of_two, ignored).to_config()
    value = {"num_bits": 8, "type": "float", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**value, "strategy": str(scheme.strategy), "dynamic": False},
        "input_activations": {**value, "strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(modules),
        "kv_cache_scheme": None,
    }
