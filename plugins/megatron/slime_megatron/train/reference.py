"""Other weights of the same modules, in host memory, swapped in when they are asked.

The reference model of the KL penalty is a copy of the weights that learn. What is frozen is the reference's as well, so
with adapters the copy is one of the adapters alone. A teacher is another model, so its copy has all weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import Parameter

from slime_megatron.train.model.policy import PolicyModel

Weights = list[dict[str, Tensor]]
"""By module, its parameters and buffers by name."""


def copy_weights(modules: Sequence[PolicyModel], *, frozen: bool = True) -> Weights:
    """The current weights, in host memory; `frozen`: parameters that do not learn, too."""
    return [
        {
            name: tensor.detach().to("cpu", copy=True)
            for name, tensor in tensors_of(module).items()
            if frozen or tensor.requires_grad or not isinstance(tensor, Parameter)
        }
        for module in modules
    ]


def tensors_of(module: PolicyModel) -> dict[str, Tensor]:
    """Parameters and persistent buffers of a module."""
    state = module.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


@contextmanager
def swapped_in(weights: Weights, modules: Sequence[PolicyModel], *, frozen: bool = False) -> Iterator[None]:
    """Inside, the modules hold `weights`; afterwards bit for bit what they held before. `frozen`: of `copy_weights`."""
    with restored(modules, frozen=frozen):
        write(weights, modules)
        yield


@contextmanager
def restored(modules: Sequence[PolicyModel], *, frozen: bool = True) -> Iterator[None]:
    """Afterwards the modules hold bit for bit what they held before; `frozen` as of `copy_weights`."""
    before = copy_weights(modules, frozen=frozen)
    try:
        yield
    finally:
        write(before, modules)


def loaded_by(load: Callable[[], None], modules: Sequence[PolicyModel]) -> Weights:
    """All weights that `load` gives the modules, in host memory; afterwards these hold bit for bit what they held.

    What learns and is not loaded is 0: adapters beside the weights of a whole model, which then do nothing.
    """
    with restored(modules):
        with torch.no_grad():
            for parameter in (parameter for module in modules for parameter in module.parameters()):
                if parameter.requires_grad:
                    parameter.zero_()
        load()
        return copy_weights(modules)


@torch.no_grad()
def write(weights: Weights, modules: Sequence[PolicyModel]) -> None:
    """Copy weights into the modules' own storage, which the optimizer and DDP keep views of."""
    for module, values in zip(modules, weights, strict=True):
        tensors = tensors_of(module)
        for name, value in values.items():
            tensors[name].copy_(value)
