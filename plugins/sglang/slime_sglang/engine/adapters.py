"""Adapters beside an engine's weights, on one rank: those of the version that it serves, for every request.

SGLang keeps adapters by name, and requests name them. An engine of a run serves one policy, so its only slot has the
adapters of the version, whatever a request names; a request that goes on under a new version gets them as it gets the
weights. SGLang's own loader tells where each element goes: once, it is given numbers for elements. Each version then
goes there directly, whole with its last bucket, and is compared with what came.
"""

from __future__ import annotations

import copy
import math
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from slime_sglang.engine.coverage import Intervals
from slime_sglang.engine.load_plan import Partial
from slime_sglang.engine.version_check import VersionFault
from weight_buckets.adapters import PREFIX, SCALE, of_adapter
from weight_buckets.views import Named

BUFFERS = {"A_buffer", "B_buffer", "A_buffer_qkv", "B_buffer_qkv"}
"""Attributes by which SGLang's layers hold their part of the slots."""
_NAME = "policy"  # of the only adapter, in SGLang's tables
_OTHER = re.compile(r"\.lora_([AB])\.")
_managers: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()  # SGLang's `LoRAManager`
_plans: weakref.WeakKeyDictionary[torch.nn.Module, Places] = weakref.WeakKeyDictionary()

Contents = Sequence[tuple[str, tuple[int, ...]]]
"""Names and shapes of an adapter's matrices, in the order in which they came."""


def know_manager(result: None, manager: Any, *arguments: Any, **named: Any) -> None:
    """After SGLang has given a model's layers room for adapters."""
    _managers[manager.base_model] = manager


def serve(original: Callable[..., None], manager: Any, forward_batch: Any) -> None:
    """Around what SGLang prepares of adapters for a batch: all requests get those of the version."""
    if _NAME in manager.loras:
        forward_batch.lora_ids = [_NAME] * len(forward_batch.lora_ids)
    original(manager, forward_batch)


def takes_adapters(model: torch.nn.Module) -> bool:
    """Whether the engine was started for them."""
    return model in _managers


@dataclass(frozen=True)
class Places:
    """Places of an adapter's elements.

    Attributes:
        by_slot: the slot's part of each buffer, and for each element of it the number of the adapter's element, from 1
            on; 0: none.
        partial: tensors that this rank uses parts of.
    """

    contents: Contents
    by_slot: Sequence[tuple[torch.Tensor, torch.Tensor]]
    partial: Partial


class IncomingAdapters:
    """The adapters of one version, from their first bucket to their last. The slot is theirs with `finish`."""

    def __init__(self) -> None:
        self._held: dict[str, torch.Tensor] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def take(self, tensors: Sequence[Named]) -> None:
        """Keep copies in host memory: a bucket is overwritten.

        Raises:
            VersionFault: a tensor is none of an adapter.
        """
        if other := next((name for name, _ in tensors if not of_adapter(name)), None):
            raise VersionFault(f"tensor '{other}' of the model came in a bucket of adapters")
        self._held |= {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors}

    def finish(self, model: torch.nn.Module) -> Partial:
        """Put them into their slot; returns what this rank used parts of.

        Raises:
            VersionFault: they do not fit the model, or what the slot holds is not what came.
        """
        if not takes_adapters(model):
            raise VersionFault("adapters came to an engine that was not started for them (enable_lora)")
        manager, held = _managers[model], dict(self._held)
        scale = held.pop(SCALE, None)
        if scale is None:
            raise VersionFault(f"adapters came without '{SCALE}'")
        for name, tensor in held.items():
            if _OTHER.sub(_other, name) not in held:
                raise VersionFault(f"tensor '{name}' came without the other matrix of its adapter")
            if tensor.dtype != manager.dtype:
                raise VersionFault(f"tensor '{name}' is {tensor.dtype}, the engine computes in {manager.dtype}")
        places = _places(model, manager, held)
        # All elements by their numbers; number 0 is a zero.
        flat = torch.cat([torch.zeros(1, dtype=manager.dtype), *(tensor.flatten() for tensor in held.values())])
        for target, numbers in places.by_slot:
            values = flat.index_select(0, numbers.flatten()).view(numbers.shape)
            target.copy_(values)
            if not torch.equal(target.cpu(), values):
                raise VersionFault("the engine's memory for adapters does not hold what came")
        rank = manager.max_lora_rank
        manager.loras[_NAME] = SimpleNamespace(config=SimpleNamespace(r=rank), scaling=float(scale))
        manager.memory_pool.uid_to_buffer_id[_NAME] = _slot(manager)
        return places.partial


def _other(side: re.Match[str]) -> str:
    return ".lora_B." if side[1] == "A" else ".lora_A."


def _slot(manager: Any) -> int:
    """The only slot: that of requests without adapters."""
    slot: int = manager.memory_pool.get_buffer_id(None)
    return slot


def _places(model: torch.nn.Module, manager: Any, held: Mapping[str, torch.Tensor]) -> Places:
    contents = [(name, tuple(tensor.shape)) for name, tensor in held.items()]
    known = _plans.get(model)
    if known is None or known.contents != contents:
        known = _plans[model] = _learn(manager, contents)
    return known


def _learn(manager: Any, contents: Contents) -> Places:
    """Have SGLang load numbers in the place of elements, into buffers of their own."""
    from sglang.srt.lora.lora import LoRAAdapter
    from sglang.srt.lora.lora_config import LoRAConfig

    sizes = [math.prod(shape) for _, shape in contents]
    starts = list(accumulate(sizes, initial=1))
    numbered = {
        name: torch.arange(start, start + size).view(shape)
        for (name, shape), start, size in zip(contents, starts, sizes, strict=False)
    }
    layers = {name.removeprefix(PREFIX).split(".")[-3] for name, _ in contents}
    rank = manager.max_lora_rank
    told = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": sorted(layers)}
    parts = manager.base_hf_config, manager.load_config, manager.lora_backend
    pool, slot = copy.copy(manager.memory_pool), _slot(manager)
    pool.pin_memory_available = False
    pool.A_buffer, pool.B_buffer = _numbers(pool.A_buffer), _numbers(pool.B_buffer)
    try:
        adapter = LoRAAdapter(_NAME, LoRAConfig.from_dict(told), *parts, base_model=manager.base_model)
        adapter.initialize_weights_from_tensors(numbered)
        pool.load_lora_weight_to_buffer(_NAME, slot, adapter, manager.lora_modules, None, None)
    except (AssertionError, LookupError, RuntimeError, ValueError) as error:  # SGLang's own checks say it in these
        raise VersionFault(f"the engine has no place for these adapters: {type(error).__name__} {error}") from error
    pairs = [(manager.memory_pool.A_buffer, pool.A_buffer), (manager.memory_pool.B_buffer, pool.B_buffer)]
    by_slot = [
        (target[slot], numbers[slot].to(torch.int32))
        for real, found in pairs
        for name in real
        for target, numbers in zip(real[name], found[name], strict=True)
    ]
    used = torch.zeros(starts[-1], dtype=torch.bool)
    for _, numbers in by_slot:
        used[numbers.flatten().long()] = True
    width, spans = manager.dtype.itemsize, zip(contents, starts, sizes, strict=False)
    partial = {
        name: (width * size, (width * _runs(used[start : start + size])).tolist())
        for (name, _), start, size in spans
        if not used[start : start + size].all()
    }
    return Places(contents, by_slot, partial)


def _numbers(buffers: Mapping[str, Sequence[torch.Tensor]]) -> dict[str, list[torch.Tensor]]:
    return {name: [torch.zeros(each.shape, dtype=torch.int64) for each in layers] for name, layers in buffers.items()}


def _runs(used: torch.Tensor) -> Intervals:
    """Where a mask [n] is set."""
    edges = np.diff(np.pad(used.numpy().astype(np.int8), 1)).nonzero()[0]
    runs: Intervals = edges.reshape(-1, 2)
    return runs
