"""The reference model of the KL penalty: a copy of the weights in host memory, swapped in when it is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from slime.models.policy import PolicyModel

Weights = list[dict[str, Tensor]]
"""By module, its parameters and buffers by name."""


def copy_weights(modules: Sequence[PolicyModel]) -> Weights:
    """The current weights, in host memory."""
    return [{name: tensor.to("cpu", copy=True) for name, tensor in tensors_of(module).items()} for module in modules]


def tensors_of(module: PolicyModel) -> dict[str, Tensor]:
    """Parameters and persistent buffers of a module, without gradient."""
    return {name: value.detach() for name, value in module.state_dict().items() if isinstance(value, Tensor)}


@contextmanager
def swapped_in(weights: Weights, modules: Sequence[PolicyModel]) -> Iterator[None]:
    """Inside, the modules hold `weights`; afterwards bit for bit what they held before."""
    with restored(modules):
        write(weights, modules)
        yield


@contextmanager
def restored(modules: Sequence[PolicyModel]) -> Iterator[None]:
    """Afterwards the modules hold bit for bit what they held before."""
    before = copy_weights(modules)
    try:
        yield
    finally:
        write(before, modules)


@torch.no_grad()
def write(weights: Weights, modules: Sequence[PolicyModel]) -> None:
    """Copy weights into the modules' own storage, which the optimizer and DDP keep views of."""
    for module, values in zip(modules, weights, strict=True):
        for name, tensor in tensors_of(module).items():
            tensor.copy_(values[name])
