"""What a process held at most is known after it was freed, until the peak is reset."""

from __future__ import annotations

import numpy as np

from slime_megatron.train.host_memory import peak, reset_peak

SIZE = 256 * 2**20


def test_the_peak_is_of_what_was_freed_since_the_reset() -> None:
    reset_peak()
    before = peak()
    np.ones(SIZE, np.uint8)
    assert before + 0.9 * SIZE < peak() < before + 1.2 * SIZE
    reset_peak()
    assert peak() < before + 0.1 * SIZE
