import numpy as np
import pytest
import torch

from weight_buckets import receipt
from weight_buckets.receipt import Fingerprint, tensor_digest, total

SIZES = (1, 2, 3, 8, 4096, 4097, 8192 * 4 + 5, 300_000)
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8)


def random(size, dtype=torch.float32):
    return (torch.randn(size, generator=torch.Generator().manual_seed(size)) * 100).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_every_bit_counts(size, dtype):
    tensor = random(size, dtype)
    digest = tensor_digest(tensor)
    for byte in {0, tensor.nbytes // 2, tensor.nbytes - 1}:
        for bit in (0, 7):
            changed = tensor.clone()
            changed.view(torch.uint8)[byte] ^= 1 << bit
            assert tensor_digest(changed) != digest


def test_order_counts():
    tensor = random(10_000)
    assert tensor_digest(tensor.flip(0)) != tensor_digest(tensor)


@pytest.mark.parametrize("other", [1, 4096, 9998])
def test_two_flipped_signs_do_not_cancel(other):
    """The top bits of two words: their weighted sums alone would cancel modulo 2^64."""
    tensor = random(10_000, torch.float64)
    changed = tensor.clone()
    changed[0] *= -1
    changed[other] *= -1
    assert tensor_digest(changed) != tensor_digest(tensor)


def test_length_counts():
    assert len({tensor_digest(torch.zeros(size)) for size in range(1, 20)}) == 19


def test_strides_do_not_count():
    matrix = random(5000).reshape(50, 100)
    assert tensor_digest(matrix.t()) == tensor_digest(matrix.t().contiguous())
    assert tensor_digest(matrix[:, 3:]) == tensor_digest(matrix[:, 3:].clone())


def test_unaligned_memory_does_not_count():
    tensor = random(4001, torch.bfloat16)
    assert tensor_digest(tensor[1:]) == tensor_digest(tensor[1:].clone())


@pytest.mark.parametrize("num_rows", [1, 3, 1000])
def test_rows_at_once_do_not_count(num_rows, monkeypatch):
    tensor = random(300_000)
    digest = tensor_digest(tensor)
    monkeypatch.setattr(receipt, "_NUM_ROWS", num_rows)
    assert tensor_digest(tensor) == digest


@pytest.mark.parametrize("size", SIZES)
def test_is_the_sum_that_it_says(size):
    """In Python's own integers, one word after another."""
    data = random(size, torch.uint8).numpy().tobytes()
    words = [int.from_bytes(data[start : start + 8], "little") for start in range(0, size, 8)]
    for level in range(3):
        first, second = receipt.hash_multipliers(torch.device("cpu"), level).tolist()
        blocks = [words[start : start + receipt.BLOCK] for start in range(0, len(words), receipt.BLOCK)]
        sums = [sum(w * a + (w >> 32) * b for w, a, b in zip(block, first, second, strict=False)) for block in blocks]
        words = [total % 2**64 for total in sums]
    assert (
        tensor_digest(random(size, torch.uint8))
        == (words[0] + int(receipt._splitmix(np.array([size], np.uint64))[0])) % 2**64
    )


def test_many_at_once():
    tensors = [random(size, dtype) for size in SIZES for dtype in DTYPES]
    started = [receipt.start_digests(tensors[:5]), receipt.start_digests(tensors[5:])]
    digests = receipt.finish_digests(started, [tensor.nbytes for tensor in tensors])
    assert digests == [tensor_digest(tensor) for tensor in tensors]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("size", SIZES)
def test_gpu_agrees_with_cpu(size):
    tensor = random(size)
    assert tensor_digest(tensor.cuda()) == tensor_digest(tensor)


def fingerprint(*tensors):
    prints = Fingerprint()
    prints.add(tensors)
    return prints.summary(prints.digests())


def test_fingerprint_sees_names_shapes_and_dtypes():
    one, two = random(8), random(16)
    variants = [
        (("a", one), ("b", two)),
        (("a", one), ("c", two)),
        (("a", one), ("b", two.reshape(4, 4))),
        (("a", one.view(torch.int32)), ("b", two)),
        (("a", one),),
    ]
    assert len({fingerprint(*variant)["fingerprint"] for variant in variants}) == len(variants)
    assert fingerprint(*variants[0]) == {**fingerprint(*variants[0]), "tensors": 2, "bytes": 96}


def test_fingerprint_of_parts_in_any_order_is_that_of_the_whole():
    one, two, three = (("a", random(8)), ("b", random(16)), ("c", random(3)))
    assert total([fingerprint(three, one), fingerprint(two)]) == fingerprint(one, two, three)
