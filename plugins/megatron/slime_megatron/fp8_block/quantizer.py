"""Makes FP8 weights of trained ones, on a trainer rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from slime_megatron.fp8_block.blocks import Quantized, dequantize, quantize_blocks
from slime_megatron.fp8_block.config import BLOCK, Fp8Format, gpu_problem


class Fp8Quantizer:
    """As `slime.weights.quantized.Quantizer` says: E4M3 [rows, columns], and fp32 scales."""

    def __init__(self, form: Fp8Format) -> None:
        self.form = form

    def require_device(self, device: torch.device) -> None:
        """Refuse GPUs on which SGLang computes with other values than those it loads.

        Raises:
            SlimeError: see `gpu_problem`; a plan says it too, where `cluster.gpu` names the GPU.
        """
        if device.type != "cuda":
            return
        major, minor = torch.cuda.get_device_capability(device)
        if problem := gpu_problem(torch.cuda.get_device_name(device), float(f"{major}.{minor}")):
            raise problem

    def quantize(self, matrices: Sequence[Tensor]) -> list[Quantized]:
        return quantize(matrices, powers_of_two=self.form.powers_of_two)

    def dequantize(self, parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        weight, scales = parts
        return dequantize(weight, scales, (BLOCK, BLOCK), dtype)


def quantize(matrices: Sequence[Tensor], *, powers_of_two: bool = False) -> list[Quantized]:
    """In blocks of 128 x 128: exactly as `slime_megatron.fp8_block.blocks` says, on CPU and GPU alike.

    Args:
        matrices: [rows, columns] in bf16, fp16 or fp32, of one device.
    """
    if matrices and matrices[0].is_cuda:
        from slime_megatron.fp8_block import kernel

        return kernel.quantize(matrices, powers_of_two)
    return [quantize_blocks(matrix, (BLOCK, BLOCK), powers_of_two=powers_of_two) for matrix in matrices]
