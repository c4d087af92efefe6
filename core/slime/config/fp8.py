"""FP8 weights: what the `quantization_config` of a config.json says of them. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime.errors import SlimeError

BLOCK = 128
"""Rows and columns of a block."""
KEY = "quantization_config"
SCALE = "_scale_inv"
"""What a weight's name ends with to name its scales. Despite it they multiply: value = weight x scale."""
_POWERS_OF_TWO = "ue8m0"

PLAIN = ("lm_head", "embed_tokens", "mlp.gate", "eh_proj", "shared_head.head", "indexer.weights_proj")
"""Matrices that no published checkpoint quantises, whether it names them or not: embeddings, output heads, routers,
the projection of a prediction layer and the head weights of sparse attention."""

_CONVERT = "Make a folder of 128 x 128 blocks by 'slime convert fp8-to-bf16' and 'slime convert bf16-to-fp8'."


@dataclass(frozen=True)
class Fp8Format:
    """Weights in E4M3, with an fp32 scale for each block of 128 x 128.

    Attributes:
        powers_of_two: scales are rounded up to powers of two (`scale_fmt: ue8m0`).
        ignored: modules that keep their weights, by whole dotted names or runs of parts of them (`mlp.gate`).
    """

    powers_of_two: bool = False
    ignored: Sequence[str] = PLAIN

    def quantizes(self, name: str, shape: Sequence[int]) -> bool:
        """Whether a checkpoint of this format holds the tensor `name` in FP8: a matrix of a module not ignored.

        Names are matched as SGLang matches them (`layers/quantization/utils.py`): by whole parts, with or without
        `model.` in front.
        """
        module, dot, kind = name.rpartition(".")
        if not dot or kind != "weight" or len(shape) != 2:
            return False
        return not any(f".{each}." in f".{module}." for each in (*PLAIN, *self.ignored))

    def to_config(self) -> dict[str, Any]:
        """The `quantization_config` that SGLang, vLLM and transformers read."""
        config: dict[str, Any] = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
            "modules_to_not_convert": list(self.ignored),
        }
        return config | ({"scale_fmt": _POWERS_OF_TWO} if self.powers_of_two else {})


def fp8_format(config: Mapping[str, Any], where: str) -> Fp8Format:
    """What a `quantization_config` says.

    Args:
        where: the file or key it comes from, for the message.

    Raises:
        SlimeError: it is not E4M3 in blocks of 128 x 128 with scales found as the engine runs. Engines lay weights
            of one scale a channel into another layout while they load them, which a later publish cannot write to.
    """
    method, block = config.get("quant_method"), config.get("weight_block_size")
    if method == "compressed-tensors":
        what = "is compressed-tensors (one scale a channel), into which live engines take no new weights"
        raise SlimeError(what, where=f"{where}: {KEY}.quant_method", todo=_CONVERT)
    if method != "fp8":
        raise SlimeError(f"is '{method}', not 'fp8'", where=f"{where}: {KEY}.quant_method", todo=_CONVERT)
    if block is None or list(block) != [BLOCK, BLOCK]:
        what = f"is {block}, but live engines take new weights only in blocks of [{BLOCK}, {BLOCK}]"
        raise SlimeError(what, where=f"{where}: {KEY}.weight_block_size", todo=_CONVERT)
    known = {"fmt": ("e4m3",), "activation_scheme": ("dynamic",), "scale_fmt": (_POWERS_OF_TWO, "float32", None)}
    for key, values in known.items():
        if config.get(key, values[0]) not in values:
            raise SlimeError(f"is '{config[key]}', not '{values[0]}'", where=f"{where}: {KEY}.{key}", todo=_CONVERT)
    ignored = config.get("ignored_layers") or config.get("modules_to_not_convert") or ()
    names = tuple(dict.fromkeys(name.removeprefix("model.").rstrip(".") for name in ignored))
    return Fp8Format(config.get("scale_fmt") == _POWERS_OF_TWO, names)
