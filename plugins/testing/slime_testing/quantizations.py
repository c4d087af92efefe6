"""The contract test of a quantization, to be called from a plugin's own tests.

from slime_testing.quantizations import check_quantization

def test_contract() -> None:
    check_quantization("int8")

It needs no engine. Whether SGLang computes with what a publish brings, `slime_testing.generation.check_generation` says
(`form`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from slime import plugins
from slime.config.keys import own_keys
from slime.errors import SlimeError
from slime.topology.quantization import Quantization, WeightFormat
from slime.weights.quantized import Quantizer, parts_of, quantizer_of
from slime_testing.plugins import check_light

SHAPES = ((256, 384), (200, 300), (1, 1), (130, 64))
MANY = 1 << 12
"""Rows or columns of a block that no matrix of this check is cut into."""
WEIGHT = "model.layers.0.mlp.down_proj.weight"


def check_quantization(name: str) -> None:
    """Assert that a quantization is well installed, and that the formats of its presets keep what they promise.

    Raises:
        AssertionError: a part of the contract is broken; says which.
        SlimeError: the quantization is not installed.
    """
    contribution, key = plugins.load().quantizations.get(name), f"rollout.{name}"
    check_light(contribution)
    assert key in own_keys(), f"the schema 'quantization/{name}' adds the key '{key}' to `RolloutConfig`"
    assert own_keys()[key].default == "null", f"'{key}' is empty unless the run sets it"
    quantization = contribution.factory()
    assert isinstance(quantization, Quantization), f"quantization '{name}' lacks a part of its protocol"
    assert quantization.presets, "a run without a quantised folder chooses a preset"
    assert quantization.logprob_alarm > 0, "logprob_alarm is in nats a token"
    with pytest.raises(SlimeError):
        quantization.read({"quant_method": "nobody's"}, key)
    for preset, config in quantization.presets.items():
        check_format(quantization, config, f"{key}={preset}")


def check_format(quantization: Quantization, config: Mapping[str, Any], where: str) -> None:
    """The same of the format that one `quantization_config` says."""
    form = quantization.read(copy.deepcopy(dict(config)), where)
    assert isinstance(form, WeightFormat), f"{where}: the format lacks a part of its protocol"
    said = form.to_config()
    assert quantization.read(said, where).to_config() == said, "what is written is read alike"
    assert form.is_quantized(WEIGHT, SHAPES[0]), f"'{WEIGHT}' is quantised"
    assert not form.is_quantized("model.norm.weight", (256,)), "only matrices are quantised"
    quantizer = quantizer_of(form)
    quantizer.require_device(torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    matrices = [torch.randn(shape, generator=generator).bfloat16() for shape in SHAPES]
    for matrix, parts in zip(matrices, quantizer.quantize(matrices), strict=True):
        _check_parts(quantizer, matrix, parts)
        _check_rows_and_columns(quantizer, matrix, parts)
    measured = sum(part.nbytes for part in quantizer.quantize([matrices[0]])[0]) / matrices[0].numel()
    assert abs(form.bytes_a_weight / measured - 1) < 0.05, f"bytes_a_weight is {form.bytes_a_weight}, not {measured}"
    _check_broken(quantizer, matrices[0])


def _check_parts(quantizer: Quantizer, matrix: Tensor, parts: Sequence[Tensor]) -> None:
    wanted = [form for _, form in parts_of(quantizer.form, WEIGHT, matrix.shape)]
    found = [(tuple(part.shape), part.dtype) for part in parts]
    assert found == [(tuple(shape), dtype) for shape, dtype in wanted], "quantize() makes what parts() lists"
    assert all(len(shape) == 2 for shape, _ in wanted), "each part has two dimensions"
    [again] = quantizer.quantize([matrix])
    assert all(_same(*pair) for pair in zip(parts, again, strict=True)), "equal numbers give equal bytes"
    values = quantizer.dequantize(parts, torch.float32)
    assert values.dtype == torch.float32, "dequantize() gives the dtype that it is asked for"
    error = torch.linalg.vector_norm(values - matrix.float()) / torch.linalg.vector_norm(matrix.float())
    assert error < 0.5, f"what engines compute with is {error:.2f} away from what is trained"


def _check_rows_and_columns(quantizer: Quantizer, matrix: Tensor, parts: Sequence[Tensor]) -> None:
    """Of the parts of a matrix, those of its first blocks and of the rest, side by side."""
    for dim, size in enumerate(quantizer.form.block):
        if not size < min(MANY, matrix.size(dim)):
            continue
        halves = [half.contiguous() for half in torch.split(matrix, [size, matrix.size(dim) - size], dim)]
        before = (*matrix.shape[:dim], size, *matrix.shape[dim + 1 :])
        starts = [part.shape[dim] for part in quantizer.form.parts(before)]
        for part, start, first, last in zip(parts, starts, *quantizer.quantize(halves), strict=True):
            assert first.size(dim) == start, "parts() of the first rows says where the others begin"
            joined = torch.cat([first.view(torch.uint8), last.view(torch.uint8)], dim)
            assert _same(part, joined), "blocks are quantised by themselves"


def _check_broken(quantizer: Quantizer, matrix: Tensor) -> None:
    matrix = matrix.clone()
    matrix[1, 2] = torch.nan
    values = quantizer.dequantize(quantizer.quantize([matrix])[0], torch.float32)
    assert not values.isfinite().all(), "a weight that is no number must not vanish"


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
