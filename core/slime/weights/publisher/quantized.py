"""Weights on their way to engines that hold them in FP8: quantised where they were gathered, before the buckets."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from slime.config.fp8 import SCALE, Fp8Format
from slime.errors import SlimeError
from slime.weights.shared.fp8 import quantize
from slime.weights.shared.views import Named

_FUSED_IN_BF16 = ".indexer.wk."
"""SGLang keeps the keys' projection of sparse attention's indexer in bf16, fused with another, whatever the checkpoint
has. From FP8 it would make it of weight and scale, and drop a weight whose scale comes in another call."""


def quantized(tensors: Iterator[Named], fp8: Fp8Format, batch_bytes: int) -> Iterator[Named]:
    """The same weights as an FP8 checkpoint of that format holds them: a matrix is followed by its scales.

    Args:
        tensors: always run through to their end, also when the receiver stops or something fails: an export is
            collective, and the other ranks are in it.
        batch_bytes: quantised at once, in one launch on a GPU.
    """
    held: list[Named] = []
    num_bytes = 0
    try:
        for name, tensor in tensors:
            held.append((name, tensor))
            num_bytes += tensor.nbytes
            if num_bytes >= batch_bytes:
                yield from _quantized(held, fp8)
                held, num_bytes = [], 0
        yield from _quantized(held, fp8)
    finally:
        for _ in tensors:
            pass


def _quantized(held: list[Named], fp8: Fp8Format) -> list[Named]:
    """Takes the tensors out of `held`: their memory is for those gathered next."""
    matrices = [tensor for name, tensor in held if _is_quantized(name, tensor, fp8)]
    done = iter(quantize(matrices, powers_of_two=fp8.powers_of_two))
    result: list[Named] = []
    for name, tensor in held:
        if _is_quantized(name, tensor, fp8):
            weight, scales = next(done)
            result += [(name, weight), (name + SCALE, scales)]
        else:
            result.append((name, tensor))
    held.clear()
    return result


def _is_quantized(name: str, tensor: torch.Tensor, fp8: Fp8Format) -> bool:
    return fp8.quantizes(name, tensor.shape) and _FUSED_IN_BF16 not in name


def check_device(device: torch.device) -> None:
    """Refuse GPUs on which SGLang computes with other values than those it loads.

    Raises:
        SlimeError: it changes the layout of FP8 weights while they load: on Blackwell with scales rounded to powers
            of two, on GPUs before Ada for kernels that multiply in bf16. A publish would not reach what it made.
    """
    if device.type != "cuda":
        return
    major, minor = torch.cuda.get_device_capability(device)
    if major >= 10 or (major, minor) < (8, 9):
        name = torch.cuda.get_device_name(device)
        what = f"{name}: SGLang changes the layout of FP8 weights there, where no publish reaches"
        todo = "Use H100 or H200 GPUs, or rollout.fp8=null: to run a checkpoint in FP8, convert it to bf16."
        raise SlimeError(what, where="rollout.fp8", todo=todo)
