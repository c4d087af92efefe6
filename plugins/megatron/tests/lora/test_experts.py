"""The products of experts with adapters in one call: their gradients, and what is not kept."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

pytest.importorskip("slime_megatron.mixture_of_experts")

from slime_megatron.lora import experts
from slime_megatron.lora.layers import Part, adapt
from slime_megatron.mixture_of_experts import grouped
from slime_megatron.mixture_of_experts.exchange import OnHost
from slime_megatron.mixture_of_experts.grouped import Groups

COUNTS = torch.tensor([[3, 0, 1], [2, 0, 4]])  # from two ranks to three experts
OWNERS = torch.tensor([0] * 5 + [2] * 5)
INPUT, OUTPUT, RANK, SCALE = 16, 32, 3, 1.5


def matrices(dtype: torch.dtype) -> list[Any]:
    """Two adapters of each expert, for the upper and for the lower half of its rows, with B that is not zero."""
    torch.manual_seed(0)
    weight = Parameter(torch.randn(INPUT, 3 * OUTPUT, dtype=dtype), requires_grad=False)
    weight.allreduce = False  # type: ignore[attr-defined]
    layer: Any = SimpleNamespace(weight1=weight, shape_of=lambda name: (3, INPUT, OUTPUT))
    found = [experts.ExpertMatrix(layer, "weight1", index) for index in range(3)]
    for matrix in found:
        halves = torch.arange(OUTPUT).chunk(2)
        first = [torch.randn(RANK, INPUT, dtype=dtype) for _ in halves]
        device = torch.device("cpu")
        parts = [Part(name, rows, a, device, False) for name, rows, a in zip("gu", halves, first, strict=True)]
        adapt(matrix, parts, SCALE, beside=False)
        for up in matrix.lora_B.values():  # type: ignore[operator, union-attr]
            torch.nn.init.normal_(up)
    return found


def run(found: list[Any], rows: Tensor) -> Tensor:
    return experts.adapted(rows, found, Groups(COUNTS, OnHost(COUNTS)))


def test_products_and_gradients_are_those_of_the_sums() -> None:
    """In float64, beside autograd through W + scale B A of each row's expert."""
    found = matrices(torch.float64)
    rows = torch.randn(10, INPUT, dtype=torch.float64, requires_grad=True)
    gradient = torch.randn(10, OUTPUT, dtype=torch.float64)
    learning = [parameter for matrix in found for parameter in matrix.parameters()]
    assert all(parameter.of_adapter and not parameter.allreduce for parameter in learning)
    results = []
    for one_call in (True, False):
        sums = torch.stack([matrix.weight + SCALE * matrix.up() @ matrix.down() for matrix in found])
        result = run(found, rows) if one_call else torch.einsum("rk,rnk->rn", rows, sums[OWNERS])
        results.append([result, *torch.autograd.grad(result, [rows, *learning], gradient)])
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)  # adapters are added in fp32
    of_idle = [
        grad for grad, parameter in zip(results[0][2:], learning, strict=True) if parameter in {*found[1].parameters()}
    ]
    assert of_idle
    assert not any(grad.any() for grad in of_idle)


def test_one_grouped_product_is_that_of_each_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's, which GPUs take in bf16 and CPUs too: it refuses matrices of six columns. Sums of 32 terms and fewer, in
    another order, are rounded to bf16."""
    found = matrices(torch.bfloat16)
    rows = torch.randn(10, INPUT, dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn(10, OUTPUT, dtype=torch.bfloat16)
    learning = [parameter for matrix in found for parameter in matrix.parameters()]
    results = []
    for one_call in (True, False):
        monkeypatch.setattr(grouped, "_in_one_call", lambda rows, one_call=one_call: one_call)
        result = run(found, rows)
        results.append([result, *torch.autograd.grad(result, [rows, *learning], gradient)])
    for got, wanted in zip(*results, strict=True):
        assert (got - wanted).abs().max() <= 2**-7 * wanted.abs().max()


def test_sums_are_rounded_as_they_are_published_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Tensor]] = []
    merge = experts._merged

    def seen(found: Any) -> Tensor:
        whole = merge(found)
        made.append(weakref.ref(whole))
        return whole

    monkeypatch.setattr(experts, "_merged", seen)
    found = matrices(torch.bfloat16)
    rows = torch.randn(10, INPUT, dtype=torch.bfloat16, requires_grad=True)
    output = run(found, rows)
    assert [ref() for ref in made] == [None]
    published = [experts.whole_weight(matrix).detach() for matrix in found]
    parts = zip(rows.split([5, 0, 5]), published, strict=True)
    assert torch.equal(output, torch.cat([part @ whole.t() for part, whole in parts]))
    output.sum().backward()
    assert [ref() for ref in made] == [None, None], "made again for the gradient of rows, and dropped again"
