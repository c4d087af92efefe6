"""Weights for engines that hold them in fewer bits: what makes them of trained ones, and how they travel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pkgutil import resolve_name
from typing import Protocol

import torch
from torch import Tensor

from slime.topology.quantization import WeightFormat
from weight_buckets.views import Form, Named


class Quantizer(Protocol):
    """Makes an engine's tensors of trained ones: `WeightFormat.quantizer`, called with the format."""

    form: WeightFormat

    def require_device(self, device: torch.device) -> None:
        """Raises SlimeError where SGLang computes with other values than those it loads: a publish would not reach
        what it made of them."""

    def quantize(self, matrices: Sequence[Tensor]) -> Sequence[Sequence[Tensor]]:
        """The parts of each matrix, as `WeightFormat.parts` lists them; of equal numbers equal bytes, on every device.

        Args:
            matrices: [rows, columns] in bf16, fp16 or fp32, of one device; whole, or whole blocks of one.
        """

    def dequantize(self, parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """The values that engines compute with, [rows, columns]."""


def quantizer_of(form: WeightFormat) -> Quantizer:
    """The quantizer of a format."""
    made: Quantizer = resolve_name(form.quantizer)(form)
    return made


def parts_of(form: WeightFormat, name: str, shape: Sequence[int]) -> list[tuple[str, Form]]:
    """Names, shapes and dtypes of what an engine gets for a matrix."""
    return [(name + part.ending, (part.shape, getattr(torch, part.dtype))) for part in form.parts(shape)]


def quantized(tensors: Iterable[Named], quantizer: Quantizer) -> list[Named]:
    """The same weights as engines get them, quantised in one launch on a GPU: a matrix is followed by its other parts.

    What comes quantised stays as it is.
    """
    form = quantizer.form

    def is_part(matrix: Tensor) -> bool:
        return str(matrix.dtype) == f"torch.{form.parts(matrix.shape)[0].dtype}"

    held = [(name, each, form.is_quantized(name, each.shape) and not is_part(each)) for name, each in tensors]
    done = iter(quantizer.quantize([each for _, each, chosen in held if chosen]))
    result: list[Named] = []
    for name, each, chosen in held:
        if chosen:
            names = [part for part, _ in parts_of(form, name, each.shape)]
            result += zip(names, next(done), strict=True)
        else:
            result.append((name, each))
    return result
