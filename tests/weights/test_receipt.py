import pytest
import torch

from slime.weights import receipt
from slime.weights.receipt import Fingerprint, tensor_digest

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


@pytest.mark.parametrize("chunk", [4096, 1 << 13, 1 << 20])
def test_chunk_size_does_not_count(chunk, monkeypatch):
    """CPU and GPU fold in chunks of different size and must agree."""
    tensor = random(300_000)
    digest = tensor_digest(tensor)
    monkeypatch.setitem(receipt._CHUNK, "cpu", chunk)
    assert tensor_digest(tensor) == digest


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("size", SIZES)
def test_gpu_agrees_with_cpu(size):
    tensor = random(size)
    assert tensor_digest(tensor.cuda()) == tensor_digest(tensor)


def fingerprint(*tensors):
    prints = Fingerprint()
    for name, tensor in tensors:
        prints.add(name, tensor, tensor_digest(tensor))
    return prints.summary()


def test_fingerprint_sees_names_shapes_dtypes_and_order():
    one, two = random(8), random(16)
    variants = [
        (("a", one), ("b", two)),
        (("b", two), ("a", one)),
        (("a", one), ("c", two)),
        (("a", one), ("b", two.reshape(4, 4))),
        (("a", one.view(torch.int32)), ("b", two)),
        (("a", one),),
    ]
    assert len({fingerprint(*variant)["fingerprint"] for variant in variants}) == len(variants)
    assert fingerprint(*variants[0]) == {**fingerprint(*variants[0]), "tensors": 2, "bytes": 96}
