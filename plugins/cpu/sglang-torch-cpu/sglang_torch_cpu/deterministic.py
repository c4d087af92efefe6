"""SGLang's `enable_deterministic_inference` on a plain CPU: the same tokens however requests are batched.

Stock SGLang brings the two pieces it needs as GPU kernels; here they are in torch: the platform installs the operators,
and a hook `murmur_hash32`. The third condition, attention that sees one sequence at a time, its torch-native backend
fulfils.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from batch_invariant.products import product as mm
from batch_invariant.products import product_and_sum as addmm

ATTENTION_BACKEND = "torch_native"
VECTOR_ELEMENTS = 64
"""A multiple of what torch's vectorised loops do at once: two AVX-512 registers of bfloat16."""

Words = NDArray[np.uint32]

_library: torch.library.Library | None = None


def allow_attention_backend() -> None:
    """Tell SGLang's argument check that torch-native attention is deterministic."""
    from sglang.srt import server_args

    if ATTENTION_BACKEND not in server_args.DETERMINISTIC_ATTENTION_BACKEND_CHOICES:
        server_args.add_deterministic_attention_backend_choices([ATTENTION_BACKEND])


def install() -> None:
    """Put the operators where SGLang's worker looks for its own; they act only in deterministic mode."""
    from sglang.srt import batch_invariant_ops

    batch_invariant_ops.enable_batch_invariant_mode = enable_batch_invariant_mode


def enable_batch_invariant_mode() -> None:
    """Replace torch's CPU operators whose result for one row depends on how many other rows there are.

    BLAS chooses its kernel, and with it the order of summation, by the number of rows: a row multiplied alone differs
    in the last bits from the same row in a batch of 64. Products of a fixed number of rows use one kernel always.
    Element-wise exponentials take a scalar path for what does not fill the last vector registers, which rounds
    otherwise. (The out-variants called inside are operators of their own; latent attention calls that of `bmm`.)
    """
    global _library
    if _library is None:
        _library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        ours = {"mm": mm, "bmm": bmm, "bmm.out": bmm_out, "addmm": addmm, "sigmoid": sigmoid, "silu": silu}
        for name, kernel in ours.items():
            _library.impl(name, kernel, "CPU")  # type: ignore[no-untyped-call]


def bmm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """`mm` for each matrix of a batch: [batch, rows, inner] x [batch, inner, columns] -> [batch, rows, columns]."""
    return torch.stack([mm(*pair) for pair in zip(left, right, strict=True)])


def bmm_out(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """`bmm` into `out`."""
    return out.copy_(bmm(left, right))


def sigmoid(values: torch.Tensor) -> torch.Tensor:
    """Element-wise logistic function, by the vector path throughout."""
    padded = _whole_vectors(values)
    return _unpadded(torch.sigmoid(padded, out=torch.empty_like(padded)), values)


def silu(values: torch.Tensor) -> torch.Tensor:
    """Element-wise `x * sigmoid(x)`, by the vector path throughout."""
    padded = _whole_vectors(values)
    return _unpadded(torch.ops.aten.silu.out(padded, out=torch.empty_like(padded)), values)


def _whole_vectors(values: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(values.flatten(), (0, -values.numel() % VECTOR_ELEMENTS))


def _unpadded(padded: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return padded[: like.numel()].view(like.shape)


def murmur_hash32(seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor) -> torch.Tensor:
    """MurmurHash3 (32 bit, hash seed 0) of the blocks (seed low, seed high, position, column).

    Equal to SGLang's Triton kernel `sglang/kernels/ops/sampling/murmur_hash.py`. Shapes: `seed` and `positions`
    [rows], `col_indices` [columns]; the result is uint32 [rows, columns]. In numpy, whose uint32 wraps around as the
    hash wants it.
    """
    seeds = seed.to(torch.int64).numpy()
    hashed = np.zeros((len(seeds), 1), np.uint32)
    for block in (seeds, seeds >> 32, positions.numpy()):
        hashed = _mix(hashed, block.astype(np.uint32)[:, None])
    hashed = _mix(hashed, col_indices.numpy().astype(np.uint32)[None, :])
    hashed ^= np.uint32(16)  # bytes were hashed
    return torch.from_numpy(_finish(hashed))


def _mix(hashed: Words, block: Words) -> Words:
    block = _rotate_left(block * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return _rotate_left(hashed ^ block, 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _finish(hashed: Words) -> Words:
    for bits, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashed ^= hashed >> np.uint32(bits)
        hashed *= np.uint32(factor)
    return hashed ^ (hashed >> np.uint32(16))


def _rotate_left(words: Words, bits: int) -> Words:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))
