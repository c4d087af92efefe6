"""Weights for engines that hold them in FP8: which tensors are quantised, and under which names they travel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slime.config.fp8 import SCALE, Fp8Format
from slime.weights.shared.fp8 import E4M3, quantize
from slime.weights.shared.views import Named

_FUSED_IN_BF16 = ".indexer.wk."
"""SGLang keeps the keys' projection of sparse attention's indexer in bf16, fused with another, whatever the checkpoint
has. From FP8 it would make it of weight and scale, and drop a weight whose scale comes in another call."""


def is_quantized(name: str, shape: Sequence[int], fp8: Fp8Format) -> bool:
    """Whether engines get it in FP8."""
    return fp8.quantizes(name, shape) and _FUSED_IN_BF16 not in name


def quantized(tensors: Iterable[Named], fp8: Fp8Format) -> list[Named]:
    """The same weights as engines get them, quantised in one launch on a GPU: a matrix is followed by its scales."""
    held = [(name, each, is_quantized(name, each.shape, fp8) and each.dtype != E4M3) for name, each in tensors]
    done = iter(quantize([each for _, each, chosen in held if chosen], powers_of_two=fp8.powers_of_two))
    result: list[Named] = []
    for name, each, chosen in held:
        if chosen:
            weight, scales = next(done)
            result += [(name, weight), (name + SCALE, scales)]
        else:
            result.append((name, each))
    return result
