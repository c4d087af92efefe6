"""Deltas give every bit back, of any pattern, and refuse what is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slime_sglang.disk import delta

WORDS = (1, 2, 4, 8)
LARGE = delta._PIECE * 2 + 64
"""Three pieces, the last one short."""


def restored(now, before, word):
    encoded = delta.encode(now, before, word)
    assert encoded is not None
    target = before.copy()
    delta.apply(memoryview(encoded), target, word)
    np.testing.assert_array_equal(target, now)
    return encoded


def random_bytes(num_bytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, num_bytes, dtype=np.uint8)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("share", [0.0, 1e-5, 0.01, 0.3])
def test_every_bit_comes_back(word, share):
    rng, before = np.random.default_rng(1), random_bytes(LARGE)
    now = before.copy()
    changed = rng.random(LARGE // word) < share
    now.view(f"u{word}")[changed] += np.array(1, f"u{word}")  # wraps around
    encoded = restored(now, before, word)
    assert len(encoded) < 3 * 32 + changed.sum() * 3 + 1


@pytest.mark.parametrize("word", WORDS)
def test_nothing_changed(word):
    before = random_bytes(LARGE)
    assert len(restored(before.copy(), before, word)) < 100


def test_no_bytes():
    empty = np.zeros(0, np.uint8)
    assert delta.encode(empty, empty, 2) is None


@pytest.mark.parametrize("word", WORDS)
def test_all_changed_by_little(word):
    before = random_bytes(LARGE)
    now = before.copy()
    now.view(f"u{word}")[:] -= np.array(1, f"u{word}")
    assert len(restored(now, before, word)) < LARGE / 100


@pytest.mark.parametrize("word", WORDS)
def test_a_delta_that_would_be_larger_is_none(word):
    assert delta.encode(random_bytes(LARGE, 1), random_bytes(LARGE, 2), word) is None


@pytest.mark.parametrize("position", [0, 255, 256, 65_535, 65_536, LARGE // 2 - 1])
def test_one_word_anywhere(position):
    before = np.zeros(LARGE, np.uint8)
    now = before.copy()
    now.view("u2")[position] = 0x8000
    restored(now, before, 2)


BITS = {
    "NaN payloads": ([0x7FC0, 0x7FC1, 0xFFFF, 0x7F81], [0x7FC1, 0x7FC0, 0x7FFF, 0xFF81]),
    "the sign of zero": ([0x0000, 0x8000, 0x0000, 0x8000], [0x8000, 0x0000, 0x0000, 0x8000]),
    "infinities and subnormals": ([0x7F80, 0xFF80, 0x0001, 0x8001], [0xFF80, 0x7F80, 0x0000, 0x0002]),
}


@pytest.mark.parametrize(("before", "now"), BITS.values(), ids=BITS)
def test_numbers_that_compare_equal_or_with_nothing(before, now):
    """As floats some of these are equal to each other and some not even to themselves."""
    before, now = (np.array(bits * 64, np.uint16).view(np.uint8) for bits in (before, now))
    restored(now, before, 2)


def test_rounding_ties():
    """Weights in fp32 half-way between two of bf16, which a step moves to either side."""
    bits = torch.arange(0x3F00, 0x4F00, dtype=torch.int16)
    tie = (bits.view(torch.bfloat16).double() + (bits + 1).view(torch.bfloat16).double()).float() / 2
    before, now = (value.bfloat16().view(torch.uint8).numpy() for value in (tie, tie * (1 + 2**-20)))
    assert (before.view(np.uint16) != now.view(np.uint16)).mean() == 0.5, "ties went to the even one"
    restored(now, before, 2)


FAULTS = {
    "cut in a head": lambda data: data[:5],
    "cut in a piece": lambda data: data[:-1],
    "a piece too few": lambda data: data[: delta._HEAD.size + delta._HEAD.unpack_from(data)[2]],
    "more than it says": lambda data: data + b"\0",
    "other bytes": lambda data: data[: delta._HEAD.size] + bytes(len(data) - delta._HEAD.size),
    "too many words": lambda data: delta._HEAD.pack(2**32 - 1, 1, len(data)) + data[delta._HEAD.size :],
    "distances of three bytes": lambda data: data[:4] + b"\3" + data[5:],
    "another count": lambda data: delta._HEAD.pack(*_one_more(data)) + data[delta._HEAD.size :],
}


def _one_more(data):
    count, width, size = delta._HEAD.unpack_from(data)
    return count + 1, width, size


@pytest.mark.parametrize("damage", FAULTS.values(), ids=FAULTS)
def test_what_is_no_delta_is_refused(damage):
    before = np.zeros(LARGE, np.uint8)
    now = before.copy()
    now[::1001] = 1
    encoded = delta.encode(now, before, 2)
    assert encoded
    with pytest.raises(ValueError, match=r"delta|piece|changes|word"):
        delta.apply(memoryview(damage(encoded)), before, 2)


def test_a_word_behind_the_end_is_refused():
    before = np.zeros(1024, np.uint8)
    now = before.copy()
    now[-1] = 1
    encoded = delta.encode(now, before, 1)
    assert encoded
    with pytest.raises(ValueError, match="word 1023 of 1000 is changed"):
        delta.apply(memoryview(encoded), before[:1000], 1)
