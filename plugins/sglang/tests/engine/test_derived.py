"""What an engine's model computes with beside its parameters: brought up to date, or refused."""

from types import SimpleNamespace

import pytest
import torch

from slime_sglang.engine import derived
from slime_sglang.engine.writes import Memory


class Router(torch.nn.Module):
    """Keeps a copy of its weight once it has run, as SGLang's `glm4_moe` does below fp32."""

    def __init__(self, name: str = "_weight_fp32") -> None:
        super().__init__()
        self.name = name
        self.weight = torch.nn.Parameter(torch.randn(4, 8).bfloat16())
        self.register_buffer(name, None, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if getattr(self, self.name) is None:
            setattr(self, self.name, self.weight.detach().float())
        return x @ getattr(self, self.name).t()


def unknown(model: torch.nn.Module) -> str | None:
    return derived.unknown(model, Memory(model.named_parameters()))


def test_a_known_copy_follows() -> None:
    model = torch.nn.Sequential(Router())
    assert unknown(model) is None
    model(torch.ones(1, 8))
    with torch.no_grad():
        model[0].weight.fill_(2)
    derived.refresh(model)
    assert unknown(model) is None
    assert torch.equal(model(torch.ones(1, 8)), torch.full((1, 4), 16.0))


def test_a_copy_of_another_name_is_refused_before_it_is_used_again() -> None:
    model = torch.nn.Sequential(Router("_weight_cached"))
    assert unknown(model) is None
    model(torch.ones(1, 8))
    assert unknown(model) == "the engine's model made '0._weight_cached' (float32 [4, 8]) when it ran"


@pytest.mark.parametrize("shape", [(4, 8), (8, 4), (32, 1)])
def test_a_copy_that_is_there_from_the_start_is_refused(shape: tuple[int, int]) -> None:
    """Transposed, requantised, or laid out otherwise."""
    model = torch.nn.Linear(8, 4, bias=False)
    model.weight_kernel = torch.zeros(shape)
    said = unknown(model)
    assert said is not None
    assert said.startswith("the engine's model keeps '.weight_kernel' (float32")


def test_a_quantisation_methods_copy_counts() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    model[0].quant_method = SimpleNamespace(buffers=None)
    assert unknown(model) is None
    model[0].quant_method.buffers = torch.zeros(5)
    assert "'0.quant_method.buffers'" in str(unknown(model))


def test_what_is_no_weight_may_come_and_stay() -> None:
    """Counters, and caches of modules without weights."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Identity())
    model[0].bounds = torch.zeros(7)
    assert unknown(model) is None
    model[0].steps, model[1].cache = torch.zeros(4, 8, dtype=torch.int64), torch.zeros(9)
    assert unknown(model) is None
