"""From what the up projections give to queries, keys and values of every head, with the rotary parts turned.

Shape letters: t tokens, h heads, n size of the part that is not turned, r rotary size, v size of a value.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from slime_megatron.transformer.rotary.module import plain_rotate

Heads = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""(query, up, turning, cos, sin) -> query [t, h, n + r], key [t, h, n + r] and value [t, h, v], of query [t, h, n + r],
up [t, h, n + v] with the parts of keys that are not turned before the values, turning [t, r], which all keys share, and
cos and sin [t, r / 2] of pairs that are neighbours."""


def heads(device: torch.device) -> Heads:
    """The best form for a device."""
    if device.type == "cpu":
        return plain_heads
    from slime_megatron.latent_attention.kernels import heads_in_two_passes

    return heads_in_two_passes


def plain_heads(query: Tensor, up: Tensor, turning: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`Heads` in plain torch operations."""
    rotary_size = turning.size(1)
    plain_size = query.size(2) - rotary_size
    plain_query, turning_query = torch.split(query, [plain_size, rotary_size], dim=-1)
    plain_key, value = torch.split(up, [plain_size, up.size(2) - plain_size], dim=-1)
    turned = plain_rotate(turning[:, None], cos, sin, True).expand(-1, query.size(1), -1)
    turned_query = plain_rotate(turning_query, cos, sin, True)
    return torch.cat([plain_query, turned_query], -1), torch.cat([plain_key, turned], -1), value.contiguous()
