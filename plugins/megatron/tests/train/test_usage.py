"""What a rank held at most since the last reading."""

from __future__ import annotations

import platform

import torch

from slime_megatron.train.usage import peak_usage

CPU = torch.device("cpu")
MIB = 2**20


def test_a_reading_begins_the_next_one() -> None:
    peak_usage(CPU)
    before = peak_usage(CPU)
    block = torch.ones(200 * MIB, dtype=torch.uint8)  # mapped by itself, and given back at once
    del block
    during, after = peak_usage(CPU), peak_usage(CPU)
    assert during.process - before.process > 190 * MIB
    assert abs(after.process - before.process) < 20 * MIB
    assert (during.host, during.device) == (platform.node(), None)
