"""Mends how SGLang draws with a seed (`enable_deterministic_inference`), on every device."""

from __future__ import annotations

from collections.abc import Callable

import torch

LARGEST = 2**32 - 2

Hash = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""`murmur_hash32`: from seeds [rows], positions [rows] and columns [columns] to 32 bits each, [rows, columns]."""


def install() -> None:
    """SGLang calls this in each of its processes before it builds anything."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.layers.sampler.murmur_hash32", below_one, HookType.AROUND)


def below_one(
    murmur_hash32: Hash, seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor
) -> torch.Tensor:
    """Hashes as int64, of which none is 2^32 - 1.

    SGLang divides them by 2^32 - 1 and takes -log(-log(x)) for Gumbel noise. That is infinite for the largest hash, and
    the token of that column is drawn, however unlikely it is: 1 of 2^32 / vocabulary tokens, which is 1 of 28,000 for a
    vocabulary of 151,552.
    """
    return murmur_hash32(seed, positions, col_indices).to(torch.int64).clamp(max=LARGEST)
