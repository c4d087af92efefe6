"""Damage to a file of rows, a bit at a time."""

from __future__ import annotations

import random
from pathlib import Path

from slime.data.rows import read_rows
from slime.errors import SlimeError


def said_of_flipped_bits(content: bytes, file: Path) -> list[str]:
    """What reading `file` says where it says something, with each of 150 bits of `content` flipped; the bits are the
    same each time. Raises whatever is no SlimeError."""
    said = list[str]()
    for bit in random.Random(1).sample(range(8 * len(content)), 150):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        try:
            read_rows(file)
        except SlimeError as error:
            said.append(str(error))
    return said
