"""SGLang's torch-native attention, several sequences a call: those of one length, which need no padding.

Stock SGLang calls torch once a sequence, in every layer. What torch computes of a sequence does not depend on the
other ones: results are the same to the last bit, and batch-invariant as they were.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

MOST_TOKENS = 8192
"""Of all sequences of a call; a longer sequence has a call of its own."""


def install() -> None:
    """The platform calls this in each worker, before the model is built."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    TorchNativeAttnBackend._run_sdpa_forward_decode = decode
    TorchNativeAttnBackend._run_sdpa_forward_extend = extend


def decode(
    backend: Any,
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    encoder_lens: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """`extend` by one token a sequence."""
    slots, new = (req_to_token, req_pool_indices), torch.ones_like(seq_lens)
    return extend(
        backend, query, output, k_cache, v_cache, *slots, seq_lens, seq_lens - new, new, encoder_lens, **options
    )


def extend(
    backend: Any,
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    encoder_lens: torch.Tensor | None = None,
    scaling: float | None = None,
    enable_gqa: bool = False,
    causal: bool = False,
    is_cross_attn: bool = False,
    sliding_window_size: int | None = None,
) -> torch.Tensor:
    """The attention of each sequence's new tokens to all of its tokens, into `output`, which is returned.

    Args:
        backend: SGLang's.
        query, output: the new tokens of one sequence after the other, [tokens, heads, head size].
        k_cache, v_cache: [slots, key heads, head size].
        req_to_token: slots of a request's tokens, [requests, longest].
        req_pool_indices: the request of a sequence, [sequences], as those that follow.
        seq_lens, extend_prefix_lens, extend_seq_lens: tokens of a sequence, the first of which are not new.
        encoder_lens, is_cross_attn: of models with an encoder, which are not supported.
        scaling: factor of the scores.
        enable_gqa: several heads share a key head.
        causal: no token attends to a later one.
        sliding_window_size: so many tokens before it are all that a token attends to.
    """
    assert encoder_lens is None
    assert not is_cross_attn
    for first, rows, length, num_new in _calls(seq_lens, extend_seq_lens):
        slots = req_to_token[req_pool_indices[rows], :length].flatten()
        keys, values = (
            cache.index_select(0, slots).view(-1, length, *cache.shape[1:]).transpose(1, 2).to(query.dtype)
            for cache in (k_cache, v_cache)
        )  # [sequences, key heads, length, size]
        places = first[:, None] + torch.arange(num_new)
        queries = query[places].transpose(1, 2)  # [sequences, heads, new, size]
        if causal and num_new < length:  # torch counts from the first token
            old = queries.new_zeros(*queries.shape[:2], length - num_new, queries.shape[-1])
            queries = torch.cat([old, queries], dim=2)
        mask, offset = None, length - queries.shape[2]
        if sliding_window_size is not None:
            window = {"sliding_window_size": sliding_window_size, "device": query.device}
            mask = backend._make_sliding_window_mask(
                q_len=length - offset, kv_len=length, query_offset=offset, **window
            )
        found = scaled_dot_product_attention(
            queries, keys, values, mask, is_causal=causal and mask is None, scale=scaling, enable_gqa=enable_gqa
        )
        output[places] = found[:, :, -num_new:].transpose(1, 2)
    return output


def _calls(seq_lens: torch.Tensor, extend_seq_lens: torch.Tensor) -> Iterator[tuple[torch.Tensor, list[int], int, int]]:
    """Sequences of one length and as many new tokens: the places of their first new ones, which they are, and both."""
    alike, first = defaultdict[tuple[int, int], list[int]](list), [0]
    for row, (length, num_new) in enumerate(zip(seq_lens.tolist(), extend_seq_lens.tolist(), strict=True)):
        alike[length, num_new].append(row)
        first.append(first[-1] + num_new)
    for (length, num_new), rows in alike.items():
        most = max(1, MOST_TOKENS // length)
        for start in range(0, len(rows), most):
            part = rows[start : start + most]
            yield torch.tensor([first[row] for row in part]), part, length, num_new
