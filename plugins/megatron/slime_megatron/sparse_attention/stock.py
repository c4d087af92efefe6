"""Sparse attention on Hopper by kernels that others maintain: FlashMLA's forward pass, cuDNN-frontend's backward pass.

`sgl_kernel.flash_mla` comes with SGLang, `cudnn.DSA` with nvidia-cudnn-frontend and nvidia-cutlass-dsl. They know
latents of 512 with a rotary part of 64, in bf16, and 64 or 128 heads. A shape is tried once in a process, on a few
tokens and against plain torch operations, before it is used: what the installed versions refuse or compute otherwise
goes to the Triton kernels. One line says which it is, and why.

Shape letters: t queries, T keys, h heads, k chosen keys.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from slime_megatron.sparse_attention.plain import PlainSparseAttention

log = logging.getLogger(__name__)

SIZE, VALUE_SIZE = 576, 512
HEADS = (64, 128)
_LEAST_KEYS = 128
"""FlashMLA ends the process where the number of a query's keys is no multiple. It is asked with powers of two: cuDNN's
kernel is compiled for every number."""
_NUM_TRIED = 32
_TOLERANCE = 2e-2
"""Of the largest entry: values and gradients are rounded to bf16 (2^-8) once or twice on their way."""


class Unusable(Exception):
    """These kernels cannot be used here; the message says why."""


@dataclass(frozen=True)
class StockKernels:
    """`sgl_kernel.flash_mla.flash_mla_sparse_fwd` and `cudnn.DSA.sparse_attention_backward_wrapper`.

    Attributes:
        lse_unit: of the logarithms that the forward kernel returns, in natural ones: its versions differ in the base.
    """

    forward: Any
    backward: Any
    lse_unit: float = 1.0

    def attend(
        self, query: Tensor, latents: Tensor, selected: Tensor, length: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Output [t, h, 512] and the natural logarithm of the sum of exp(score), fp32 [t, h].

        Args:
            selected: [t, k] int32, the chosen keys of a query first.
            length: [t] int32, how many they are.
        """
        rows = selected[:, None]
        output, _, lse = self.forward(query, latents[:, None], rows, scale, d_v=VALUE_SIZE, topk_length=length)
        return output, lse if self.lse_unit == 1 else lse * self.lse_unit

    def gradients(
        self, tensors: tuple[Tensor, ...], selected: Tensor, length: Tensor, scale: float, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        """By query and latents, of these and both results of `attend` (`tensors`); grad: [t, h, 512], by the output."""
        query, latents, output, lse = tensors
        no_sink = torch.full_like(lse[0], -math.inf)  # [h]; it adds exp(-inf) to every sum
        given = {"softmax_scale": scale, "topk_length": length}
        found = self.backward(query, latents, output, grad, lse, no_sink, selected, **given)
        return found["dq"], found["dkv"]


class _StockSparseAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, latents: Tensor, selected: Tensor, scale: float, kernels: StockKernels
    ) -> Tensor:
        query, latents, selected = query.contiguous(), latents.contiguous(), selected.contiguous()
        length = (selected >= 0).sum(1, dtype=torch.int32)
        output, lse = kernels.attend(query, latents, selected, length, scale)
        ctx.save_for_backward(query, latents, output, lse, selected, length)
        ctx.scale, ctx.kernels = scale, kernels
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, selected, length = (tensor.detach() for tensor in ctx.saved_tensors)
        gradients = ctx.kernels.gradients(tuple(tensors), selected, length, ctx.scale, grads[0].contiguous())
        return *gradients, None, None, None


def by_stock_kernels(query: Tensor, latents: Tensor, selected: Tensor, scale: float, kernels: StockKernels) -> Tensor:
    """`slime_megatron.sparse_attention.sparse_attention.sparse_attention`; heads that are added ask for nothing: their
    queries are zeros, and so are their gradients."""
    num_heads, num_keys = query.size(1), selected.size(1)
    if missing := padded_heads(num_heads) - num_heads:
        query = F.pad(query, (0, 0, 0, missing))
    if missing := padded_keys(num_keys) - num_keys:
        selected = F.pad(selected, (0, missing), value=-1)
    output: Tensor = _StockSparseAttention.apply(query, latents, selected, scale, kernels)  # type: ignore[no-untyped-call]
    return output[:, :num_heads]


def padded_heads(num_heads: int) -> int:
    """The least number of heads that the kernels know."""
    return next((known for known in HEADS if known >= num_heads), num_heads)


def padded_keys(num_keys: int) -> int:
    """The width of `selected` that the kernels are asked with."""
    return max(_LEAST_KEYS, 1 << (num_keys - 1).bit_length())


def check_fit(major: int, num_heads: int, size: int, value_size: int) -> None:
    """Raises `Unusable`: the kernels do not know this, by their sources. The Triton kernels do fewer heads than half of
    64 in less time.

    Args:
        major: of the GPU's compute capability.
    """
    if major != 9:
        raise Unusable(f"FlashMLA and cuDNN-frontend are asked on Hopper alone, not for compute capability {major}")
    if (size, value_size) != (SIZE, VALUE_SIZE):
        raise Unusable(f"keys are of {size} and values of {value_size}; FlashMLA knows {SIZE} and {VALUE_SIZE}")
    if not HEADS[0] // 2 <= num_heads <= HEADS[-1]:
        raise Unusable(f"FlashMLA knows {HEADS[0]} and {HEADS[-1]} heads, not {num_heads}")


def stock_kernels(
    device: torch.device, num_heads: int, size: int, value_size: int, num_keys: int
) -> StockKernels | None:
    """The kernels for this shape, tried in this process; None where they cannot be used. A line tells once which."""
    return _stock_kernels(device, num_heads, size, value_size, padded_keys(num_keys))


@cache
def _stock_kernels(
    device: torch.device, num_heads: int, size: int, value_size: int, num_keys: int
) -> StockKernels | None:
    shape = f"sparse attention of {num_heads} heads to {num_keys} keys"
    try:
        check_fit(torch.cuda.get_device_capability(device)[0], num_heads, size, value_size)
        kernels = _tried(device, padded_heads(num_heads), num_keys)
    except Unusable as problem:
        log.warning("%s is computed by the Triton kernels: %s", shape, problem)
        return None
    log.warning("%s is computed by FlashMLA and cuDNN-frontend", shape)  # trainers' logs show warnings alone
    return kernels


def _tried(device: torch.device, num_heads: int, num_keys: int) -> StockKernels:
    """The installed kernels, after a few queries with 1 to `num_keys` keys: values and gradients. Raises `Unusable`."""
    try:
        forward = import_module("sgl_kernel.flash_mla").flash_mla_sparse_fwd
        backward = import_module("cudnn").DSA.sparse_attention_backward_wrapper
        compiler_error = import_module("cutlass.base_dsl.common").DSLBaseError
    except (ImportError, AttributeError, OSError) as problem:
        raise Unusable(f"{type(problem).__name__}: {_first_line(problem)}") from problem
    try:
        with torch.inference_mode(False), torch.enable_grad():
            return trial(StockKernels(forward, backward), device, num_heads, num_keys)
    except torch.OutOfMemoryError:
        raise
    except (ImportError, RuntimeError, ValueError, TypeError, AssertionError, compiler_error) as problem:
        raise Unusable(f"at the first trial, {type(problem).__name__}: {_first_line(problem)}") from problem


def trial(kernels: StockKernels, device: torch.device, num_heads: int, num_keys: int) -> StockKernels:
    """The same kernels with the unit of their logarithms, which is measured. Raises `Unusable`: values or gradients are
    not those of the formula."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).bfloat16()

    num_rows = num_keys + _LEAST_KEYS
    query, latents = normal(_NUM_TRIED, num_heads, SIZE), normal(num_rows, SIZE)
    grad = normal(_NUM_TRIED, num_heads, VALUE_SIZE)
    length = torch.linspace(1, num_keys, _NUM_TRIED, device=device).int()
    rows = torch.rand(_NUM_TRIED, num_rows, generator=generator, device=device).argsort(1)[:, :num_keys].int()
    selected = rows.masked_fill(torch.arange(num_keys, device=device) >= length[:, None], -1)

    _, lse = kernels.attend(torch.zeros_like(query), latents, selected, length, 1.0)
    natural = math.log(num_keys) / float(lse[-1].mean())  # all scores are 0
    unit = min((1.0, math.log(2)), key=lambda known: abs(natural - known))
    if not abs(natural - unit) < 1e-3:
        raise Unusable(f"FlashMLA returns logarithms to another base than e and 2 ({natural:.3f})")
    kernels = replace(kernels, lse_unit=unit)

    ours = [tensor.clone().requires_grad_() for tensor in (query, latents)]
    exact = [tensor.float().requires_grad_() for tensor in (query, latents)]
    got = by_stock_kernels(ours[0], ours[1], selected, SIZE**-0.5, kernels)
    wanted = PlainSparseAttention.apply(*exact, selected, SIZE**-0.5, VALUE_SIZE)  # type: ignore[no-untyped-call]
    values = got, *torch.autograd.grad(got, ours, grad)
    references = wanted, *torch.autograd.grad(wanted, exact, grad.float())
    names = "values", "queries' gradients", "latents' gradients"
    for name, value, reference in zip(names, values, references, strict=True):
        error = float((value.float() - reference).abs().max() / reference.abs().max())
        if not error < _TOLERANCE:
            raise Unusable(f"{name} of FlashMLA and cuDNN-frontend are off by {error:.1e}")
    return kernels


def _first_line(problem: BaseException) -> str:
    return str(problem).strip().split("\n", 1)[0]
