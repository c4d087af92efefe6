"""Tensors that an engine's model computes with beside its parameters, and how they follow a version.

SGLang makes again what it makes while it loads (the absorbed projections of latent attention, fused matrices). What a
model makes of a weight when it first runs, and keeps, is either brought up to date here, or refused: it would stay at
the weights of the version before.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from slime_sglang.engine.adapters import BUFFERS
from slime_sglang.engine.writes import Memory

_COPIES = {"_weight_fp32": "weight"}
"""Attribute of a module, and the parameter of the same module of which it is a copy in another precision. The routers
of some mixtures of experts have one."""

_known: weakref.WeakKeyDictionary[torch.nn.Module, frozenset[str]] = weakref.WeakKeyDictionary()
"""By model, names of the tensors that it had beside its parameters after its first version."""


@torch.no_grad()
def refresh(model: torch.nn.Module) -> None:
    """Copy in place: captured CUDA graphs read these copies by their address."""
    for module in model.modules():
        for copy, original in _COPIES.items():
            kept = getattr(module, copy, None)
            if kept is not None:
                kept.copy_(getattr(module, original))


def after_dummy_weights(original: Callable[..., None], model: Any) -> None:
    """Around what SGLang makes of an engine's first, made-up weights. Some classes that draft with a layer of latent
    attention inherit the method for whole models, and end the engine (SGLang 0.5.16): they name the layer otherwise."""
    inner = getattr(model, "model", None)
    if hasattr(model, "post_load_weights") and hasattr(inner, "decoder") and not hasattr(inner, "start_layer"):
        model.post_load_weights(is_nextn=True)
    else:
        original(model)


def kept_beside(model: torch.nn.Module, parameters: Memory) -> Mapping[str, torch.Tensor]:
    """Tensors of modules and of their quantisation methods that are neither parameters nor adapters, by name."""
    return {
        f"{name}.{attribute}": value
        for name, holder in _holders(model)
        for attribute, value in holder.items()
        if isinstance(value, torch.Tensor) and value.nbytes and not value.is_meta and parameters.find(value) is None
        if attribute not in BUFFERS
    }


def _holders(model: torch.nn.Module) -> Iterator[tuple[str, Mapping[str, object]]]:
    for name, module in model.named_modules():
        yield name, {**vars(module), **module._buffers}
        if (method := getattr(module, "quant_method", None)) is not None and hasattr(method, "__dict__"):
            yield f"{name}.quant_method", vars(method)


def unknown(model: torch.nn.Module, parameters: Memory) -> str | None:
    """Why the model may compute with other weights than the version's that just arrived; None: it does not.

    Two kinds of floating-point tensors are not known to follow: those that the model made after the first version,
    while it ran, and matrices as large as a parameter of their module.
    """
    beside = {
        name: tensor
        for name, tensor in kept_beside(model, parameters).items()
        if tensor.is_floating_point() and name.rpartition(".")[2] not in _COPIES
    }
    before = _known.setdefault(model, frozenset(beside))
    for name, tensor in beside.items():
        owner = model.get_submodule(name.rpartition(".")[0].removesuffix(".quant_method"))
        if name not in before and any(True for _ in owner.parameters()):
            return f"the engine's model made '{name}' {_form(tensor)} when it ran"
        for of, parameter in owner.named_parameters(recurse=False):
            if tensor.dim() > 1 and tensor.numel() == parameter.numel():
                return f"the engine's model keeps '{name}' {_form(tensor)} beside '{of}', as a copy would be"
    return None


def _form(tensor: torch.Tensor) -> str:
    return f"({str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)})"
