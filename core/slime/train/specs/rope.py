"""Rotary embeddings at given positions, in either order of the rotated dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotation:
    """Of t tokens.

    Attributes:
        cos, sin: [t, rotated size / 2] fp32.
    """

    cos: Tensor
    sin: Tensor

    @classmethod
    def at(cls, embedding: Any, positions: Tensor, longest: int) -> Rotation:
        """From Megatron-core's `RotaryEmbedding` or `YarnRotaryEmbedding`; all positions lie below `longest`."""
        found = embedding(longest, packed_seq=True)
        angles, scale = found if isinstance(found, tuple) else (found, 1.0)
        angles = angles[:, 0, 0, : angles.size(-1) // 2].index_select(0, positions)
        return cls(angles.cos() * scale, angles.sin() * scale)

    def part(self, begin: int, end: int) -> Rotation:
        """Of the tokens `begin` to `end`."""
        return Rotation(self.cos[begin:end], self.sin[begin:end])

    def __call__(self, x: Tensor, *, interleaved: bool) -> Tensor:
        """Rotate x [t, size] or [t, heads, size], whole.

        Pairs are neighbouring entries if `interleaved`, else an entry of each half. They come out as entries of each
        half either way: scalar products of rotated vectors do not depend on it.
        """
        one, other = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
        cos, sin = (part.view(len(part), *[1] * (x.dim() - 2), -1) for part in (self.cos, self.sin))
        return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=-1).to(x.dtype)

    def of_first(self, x: Tensor, *, interleaved: bool) -> Tensor:
        """Rotate as many of the first entries of x as there are angles; the rest stays."""
        size = 2 * self.cos.size(-1)
        return torch.cat([self(x[..., :size], interleaved=interleaved), x[..., size:]], dim=-1)
