"""What a process held at most is known after it was freed, until the peak is reset."""

from __future__ import annotations

import numpy as np

from slime_megatron.train.host_memory import HostMemory, peak, reset_peak

SIZE = 256 * 2**20


def test_the_peak_is_of_what_was_freed_since_the_reset() -> None:
    reset_peak()
    before = peak()
    np.ones(SIZE, np.uint8)
    assert before + 0.9 * SIZE < peak() < before + 1.2 * SIZE
    reset_peak()
    assert peak() < before + 0.1 * SIZE


def test_memory_stays_and_grows() -> None:
    memory = HostMemory()
    first, second = memory.blocks([1000, 4000])
    assert (len(first), len(second), first.untyped_storage().nbytes()) == (1000, 4000, 1000)
    first.fill_(1)
    second.fill_(2)
    assert set(first.tolist()) == {1}
    assert memory.of_size(5000).data_ptr() == first.data_ptr()
    assert memory.blocks([10])[0].tolist() == [1] * 10
    assert len(memory.of_size(SIZE)) == SIZE
    assert second.tolist() == [2] * 4000, "who holds a block has it still"
