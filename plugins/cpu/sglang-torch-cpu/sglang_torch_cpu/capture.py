"""SGLang's `enable_return_routed_experts` on a plain CPU, which has no page-locked memory to keep them in."""

from __future__ import annotations

from typing import Any

import torch


def make_host_cache(cache: Any, num_tokens: int, num_layers: int, topk_size: int, name: str) -> None:
    """As SGLang's constructor of what it notes of every token of its pool, in plain memory."""
    cache.buffer = torch.zeros((num_tokens, num_layers, topk_size), dtype=torch.int32)
    cache.num_tokens, cache.num_layers, cache.topk_size, cache.name = num_tokens, num_layers, topk_size, name
