"""Mends how SGLang draws, with a seed a request (`enable_deterministic_inference`) or without, on every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from slime_sglang.engine.own import is_of_an_engine

LARGEST = 2**32 - 2
RANKS_APART = 1 << 16
"""Between the seeds of two data-parallel ranks: more than a run has engines, whose seeds are one apart."""

Hash = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""`murmur_hash32`: from seeds [rows], positions [rows] and columns [columns] to 32 bits each, [rows, columns]."""


def install() -> None:
    """SGLang calls this in each of its processes before it builds anything."""
    if not is_of_an_engine():
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.layers.sampler.murmur_hash32", below_one, HookType.AROUND)
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.__init__", draw_apart, HookType.AFTER)


def draw_apart(result: None, scheduler: Any, *arguments: Any, **named: Any) -> None:
    """After a scheduler was built, in its process: give every data-parallel attention rank noise of its own. SGLang
    seeds all ranks alike, and a prompt would get the same response on each. Ranks that share a request keep one
    seed."""
    from sglang.srt.utils import set_random_seed

    if scheduler.ps.attn_dp_rank:
        set_random_seed((scheduler.random_seed + scheduler.ps.attn_dp_rank * RANKS_APART) % 2**32)


def below_one(
    murmur_hash32: Hash, seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor
) -> torch.Tensor:
    """Hashes as int64, of which none is 2^32 - 1.

    SGLang divides them by 2^32 - 1 and takes -log(-log(x)) for Gumbel noise: infinite for the largest hash, whose token
    is then drawn, however unlikely it is. That is 1 token of 28,000 for a vocabulary of 151,552.

    Positions may be more than rows: SGLang takes seeds and logits of a batch's padding away and leaves its positions.
    """
    return murmur_hash32(seed, positions[: len(seed)], col_indices).to(torch.int64).clamp(max=LARGEST)
