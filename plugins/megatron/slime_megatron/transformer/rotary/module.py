"""Rotary position embedding (Su et al. 2021) of packed sequences: angles once a micro-batch, applied in every layer.

Megatron-core's own needs the lengths on the host in every layer and a chain of small operations.
Shape letters: t tokens, g key-value groups, m query heads a group, d head size, r rotated pairs (2r <= d).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from batch_invariant import rows
from slime_megatron.train.model.packed.sequences import PackedSequences


class RotaryTable(NamedTuple):
    """[t, r] fp32 each, of every token's angles."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, angles: Tensor, positions: Tensor, interleaved: bool, scale: float) -> RotaryTable:
        """From Megatron-core's angles.

        Args:
            angles: [longest sequence, 1, 1, 2r] with every angle twice, side by side if `interleaved`, else r apart.
            positions: [t] of each token in its sequence.
            scale: factor of cos and sin (YaRN's concentration, arXiv 2309.00071).
        """
        once = angles[:, 0, 0, ::2] if interleaved else angles[:, 0, 0, : angles.size(-1) // 2]
        of_tokens = once.index_select(0, positions)
        return cls(of_tokens.cos() * scale, of_tokens.sin() * scale)

    def part(self, begin: int, end: int) -> RotaryTable:
        """Of the tokens `begin` to `end`."""
        return RotaryTable(self.cos[begin:end], self.sin[begin:end])


class RotaryTables:
    """Those of a pack (`PackedSequences.derived`): each made for the first layer with its angles, kept for the others
    with the angles, so that no others come to lie where they are."""

    def __init__(self, packed: PackedSequences) -> None:
        self._positions = packed.positions
        self._made: dict[int, tuple[Tensor, RotaryTable]] = {}

    def of(self, angles: Tensor, interleaved: bool, scale: float) -> RotaryTable:
        """See `RotaryTable.of`."""
        if angles.data_ptr() not in self._made:
            table = RotaryTable.of(angles, self._positions, interleaved, scale)
            self._made[angles.data_ptr()] = (angles, table)
        return self._made[angles.data_ptr()][1]


Rotate = Callable[[Tensor, Tensor, Tensor, bool], Tensor]
"""[t, heads, d] turned by a table's cos and sin, the first 2r entries of each; the flag says that pairs are neighbours
(GPT-J), not r apart (GPT-NeoX)."""

SplitAndRotate = Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor, Tensor]]
"""[t, g, m + 2, d], in each group m queries, a key and a value, to [t, g * m, d], [t, g, d] and [t, g, d], with queries
and keys turned."""


plain_rotate: Rotate = rows.rotate
"""In plain torch operations."""


def plain_split_and_rotate(qkv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> tuple[Tensor, Tensor, Tensor]:
    """`SplitAndRotate` in plain torch operations."""
    query, key, value = split(qkv)
    return plain_rotate(query, cos, sin, interleaved), plain_rotate(key, cos, sin, interleaved), value


def split(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[t, g, m + 2, d] -> [t, g * m, d], [t, g, d], [t, g, d]."""
    query, key, value = torch.split(qkv, [qkv.size(2) - 2, 1, 1], dim=2)
    return query.flatten(1, 2), key.flatten(1, 2), value.flatten(1, 2)


def rotary(device: torch.device) -> tuple[Rotate, SplitAndRotate]:
    """The best forms for a device."""
    if device.type == "cpu":
        return plain_rotate, plain_split_and_rotate
    from slime_megatron.transformer.rotary.kernels import rotate, split_and_rotate

    return rotate, split_and_rotate
