"""Attention of every query to a few chosen keys, which all heads share (multi-query over latents).

Nothing of the size [tokens, tokens] exists: cost and memory grow with the chosen keys. On CUDA, in bf16, it is computed
by kernels: FlashMLA's and cuDNN-frontend's where they are installed and know the shape (`.stock`), else ours in Triton
(`.kernels`); tiles of fp32 are too large for those at the sizes of real models.

Shape letters: t queries, T keys, h heads, k keys chosen for a query, d key size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slime_megatron.sparse_attention.plain import PlainSparseAttention


def sparse_attention(query: Tensor, latents: Tensor, selected: Tensor, scale: float, value_size: int) -> Tensor:
    """softmax(scale * query . keys) @ values over the selected rows of `latents`.

    Args:
        query: [t, h, d].
        latents: [T, d]: keys; their first `value_size` entries are the values too.
        selected: [t, k] int32 rows of `latents`, at least one a query, those first; then -1, which stands for none.

    Returns:
        [t, h, value_size]. Differentiable in `query` and `latents`.
    """
    function: type[torch.autograd.Function] = PlainSparseAttention
    if query.is_cuda and query.dtype is torch.bfloat16:
        from slime_megatron.sparse_attention.kernels import TritonSparseAttention
        from slime_megatron.sparse_attention.stock import by_stock_kernels, stock_kernels

        shape = (query.device, query.size(1), query.size(2), value_size, selected.size(1))
        if (kernels := stock_kernels(*shape)) is not None:
            return by_stock_kernels(query, latents, selected, scale, kernels)
        function = TritonSparseAttention
    result: Tensor = function.apply(query, latents, selected, scale, value_size)  # type: ignore[no-untyped-call]
    return result
