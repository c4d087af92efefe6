"""What makes the weights, on a trainer rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Int8Quantizer:
    def __init__(self, form) -> None:
        self.form = form

    def require_device(self, device: torch.device) -> None:
        """Every device will do."""

    def quantize(self, matrices: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        return [self._quantized(matrix.float()) for matrix in matrices]

    def _quantized(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        scales = (matrix.abs().amax(1, keepdim=True) / 127).clamp(min=1e-30)
        return (matrix / scales).round().nan_to_num().to(torch.int8), scales

    def dequantize(self, parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        weight, scales = parts
        return (weight.float() * scales).to(dtype)
