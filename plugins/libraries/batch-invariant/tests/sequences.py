"""Sequences of several lengths whose attention is computed at once, in parts, and one token after the other."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from batch_invariant.attention import attention

LENGTHS = (5, 9, 64, 1, 9, 70)
HEADS = {"shared": (4, 2, 16, 16), "of their own": (3, 3, 16, 24), "one for many": (6, 1, 16, 16)}
SCALE = 0.3


class Case:
    """Heads, key-value heads, sizes of queries and of values by the name `heads`; `attend`: as `attention`."""

    def __init__(self, heads, dtype, device, attend=attention):
        self.attend = attend
        num_heads, num_groups, size, value_size = HEADS[heads]
        self.total, self.device = sum(LENGTHS), device
        self.borders = torch.tensor([0, *LENGTHS]).cumsum(0).to(device)
        random = torch.Generator().manual_seed(3)
        sizes = (num_heads, size), (num_groups, size), (num_groups, value_size)
        self.query, self.key, self.value = (
            torch.randn(self.total, *each, generator=random).to(device, dtype) for each in sizes
        )
        self.slots = torch.randperm(self.total, generator=random).to(device)

    def whole(self):
        """Keys and values where they are."""
        return self._attend(self.query, self.key, self.value, torch.arange(self.total), self.borders, self.borders)

    def _attend(self, query, key, value, index, query_borders, key_borders):
        most = int((query_borders[1:] - query_borders[:-1]).max())
        borders = query_borders.to(self.device), key_borders.to(self.device)
        out = query.new_empty(*query.shape[:2], value.size(-1))
        self.attend(query, key, value, index.to(self.device), *borders, most, SCALE, out)
        return out

    def exact(self):
        """torch's own, in float64."""
        found = []
        for begin, end in zip(self.borders[:-1].tolist(), self.borders[1:].tolist(), strict=True):
            q, k, v = (x[begin:end].transpose(0, 1).double() for x in (self.query, self.key, self.value))
            alike = q.size(0) != k.size(0)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=SCALE, enable_gqa=alike)
            found.append(out.transpose(0, 1))
        return torch.cat(found)

    def check_parts(self, same):
        """The second half of each sequence behind the first, then all last tokens: from a scattered pool, `same`."""
        whole, pools = self.whole(), [torch.empty_like(x) for x in (self.key, self.value)]
        for pool, x in zip(pools, (self.key, self.value), strict=True):
            pool[self.slots] = x
        for number, (begin, end) in enumerate(zip(self.borders[:-1].tolist(), self.borders[1:].tolist(), strict=True)):
            middle = begin + (end - begin) // 2 if number % 2 else max(begin, end - 3)
            keys = torch.tensor([0, end - begin])
            half = self._attend(
                self.query[middle:end], *pools, self.slots[begin:end], torch.tensor([0, end - middle]), keys
            )
            same(half, whole[middle:end])
        last = self.borders[1:] - 1
        found = self._attend(self.query[last], *pools, self.slots, torch.arange(len(LENGTHS) + 1), self.borders)
        same(found, whole[last])
