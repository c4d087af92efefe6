from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from slime_sglang.engine.writes import Memory, differences, differs, observed_writes


def test_all_three_ways_to_write_are_seen():
    parameter, source = torch.nn.Parameter(torch.zeros(4, 6)), torch.ones(2, 6)
    with observed_writes() as writes:
        parameter.data[:2].copy_(source)
        parameter.data.narrow(0, 2, 1).fill_(0)
        parameter.data[3] = source[0]
    assert [write.target.data_ptr() for write in writes] == [parameter[row].data_ptr() for row in (0, 2, 3)]
    assert [write.source is None for write in writes] == [False, True, False]
    assert parameter[3].eq(1).all()


@pytest.mark.parametrize("dim", [0, 1])
def test_what_was_joined_first_is_written_from_its_parts(dim):
    parameter, parts = torch.zeros(4, 4), [torch.ones(4, 4).narrow(dim, 0, size) for size in (1, 3)]
    before = torch.cat
    with observed_writes() as writes:
        parameter.copy_(torch.cat(parts, dim=dim))
    assert all(write.source is part for write, part in zip(writes, parts, strict=True))
    assert [write.target.data_ptr() for write in writes] == [parameter.narrow(dim, n, 1).data_ptr() for n in (0, 1)]
    assert parameter.eq(1).all()
    assert torch.cat is before


def test_other_threads_are_seen():
    parameters = [torch.zeros(8) for _ in range(20)]
    with observed_writes() as writes, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda parameter: parameter.copy_(torch.ones(8)), parameters))
    assert {write.target.data_ptr() for write in writes} == {parameter.data_ptr() for parameter in parameters}


def fail_to_copy():
    with observed_writes():
        torch.zeros(2).copy_(torch.zeros(3))


@pytest.mark.parametrize("name", ["copy_", "fill_", "__setitem__"])
def test_torch_is_itself_again_also_after_an_error(name):
    before = getattr(torch.Tensor, name)
    with pytest.raises(RuntimeError, match="must match"):
        fail_to_copy()
    assert getattr(torch.Tensor, name) is before
    assert name not in torch.Tensor.__dict__


def test_memory_finds_the_owner_of_a_view():
    flat = torch.zeros(100)
    memory = Memory([("first", flat[:40]), ("second", flat[40:90])])
    assert memory.find(flat[10:12]).name == "first"
    assert memory.find(flat[40:]).name == "second"
    assert memory.find(flat[90:]) is None
    assert memory.find(torch.zeros(3)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("size", [1, 7, 8, 64])
def test_differs_sees_one_bit(size, dtype):
    source = torch.arange(size).to(dtype)
    target = source.clone()
    assert not differs(target, source)
    target.view(torch.uint8)[-1] ^= 1
    assert differs(target, source)


def test_bits_are_compared_and_not_values():
    assert not differs(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert differs(torch.tensor([0.0]), torch.tensor([-0.0]))


def test_strided_views_are_compared():
    matrix = torch.arange(24.0).reshape(4, 6)
    assert not differs(matrix.t().clone()[:, 1:3], matrix.t()[:, 1:3])


def test_widening_keeps_the_value_and_narrowing_loses_it():
    fine = torch.tensor([1.0, 1.0 + 2**-20])
    assert differs(fine.to(torch.bfloat16), fine)
    coarse = fine.to(torch.bfloat16)
    assert not differs(coarse.float(), coarse)


@pytest.mark.gpu
def test_differences_of_mixed_copies() -> None:
    """One launch for what it can compare; the rest, converted or strided or unaligned, one by one."""
    plain, fine = torch.randn(8, 8, device="cuda"), torch.linspace(0, 1, 8, device="cuda")
    wrong = plain.clone()
    wrong[7, 7] += 1
    copies = [(plain.clone(), plain), (wrong, plain), (fine.bfloat16(), fine), (plain.t(), plain), (fine[1:], fine[1:])]
    assert [bool(found) for found in differences(copies)] == [False, True, True, True, False]
