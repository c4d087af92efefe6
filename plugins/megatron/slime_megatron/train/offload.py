"""Gives the device up and takes it back: what a trainer rank holds moves to page-locked host memory and returns.

Storages are emptied in place, so every view of them (DDP's buckets, the optimizer's shards, `main_grad`) is valid
again once they are filled; nothing is rebuilt. What other libraries allocate stays: the CUDA context, cuBLAS
workspaces and NCCL's communicator buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from slime_megatron.train.host_memory import ALIGN, HostMemory
from slime_megatron.train.megatron import Model
from slime_megatron.train.optimizer import Optimizer


class Offload:
    """What one trainer rank keeps on its device, and where it is while another process uses the device.

    Parameters, master weights and Adam's moments are kept bit for bit. Gradients are not: `take_gradients`
    makes them again, zero. Host memory is taken at the first offload and used again at every other.
    """

    def __init__(self, model: Model, optimizer: Optimizer, device: torch.device) -> None:
        self._model, self._optimizer, self._device = model, optimizer, device
        locked_for = "offloading the trainer to host memory" if device.type == "cuda" else ""
        self._host = HostMemory(locked_for, "Give the host more memory, or use cluster.placement=disaggregated.")
        self._away: list[HostSlot] = []
        self._dropped: list[HostSlot] = []

    def offload(self) -> int:
        """Free the device; returns the bytes that moved to the host. Nothing happens if it is free already."""
        if self._away:
            return 0
        self.drop_gradients()
        away = host_slots(kept(self._model, self._optimizer), self._device)
        num_bytes = away[-1].end
        host = self._host.of_size(num_bytes)
        for slot in away:
            host[slot.start : slot.end].copy_(slot.bytes(), non_blocking=True)
        _synchronize(self._device)
        for slot in away:
            slot.storage.resize_(0)
        self._away = away
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return num_bytes

    def drop_gradients(self) -> None:
        """Free their memory, until `take_gradients`; nothing happens if it is free already. Nobody needs gradients
        while weights are published or saved."""
        if self._dropped:
            return
        for param in optimizer_params(self._optimizer):
            param.grad = None
        self._dropped = host_slots(gradients(self._model), self._device)
        for slot in self._dropped:
            slot.storage.resize_(0)

    def take_gradients(self) -> None:
        """Their memory again, as zeros, unless it is there."""
        for slot in self._dropped:
            slot.storage.resize_(slot.num_bytes)
            slot.bytes().zero_()
        self._dropped = []

    def onload(self) -> int:
        """Fill the device again but for gradients; returns the bytes that came from the host. Nothing happens if it is
        filled."""
        if not self._away:
            return 0
        num_bytes = self._away[-1].end
        host = self._host.of_size(num_bytes)
        for slot in self._away:
            slot.storage.resize_(slot.num_bytes)
            slot.bytes().copy_(host[slot.start : slot.end], non_blocking=True)
        _synchronize(self._device)
        self._away = []
        return num_bytes


@dataclass(frozen=True)
class HostSlot:
    """A storage of the device and its place, `start` to `end` in bytes, in host memory."""

    storage: torch.UntypedStorage
    num_bytes: int
    start: int

    @property
    def end(self) -> int:
        return self.start + self.num_bytes

    def bytes(self) -> Tensor:
        """[num_bytes] uint8 view of the storage."""
        view = torch.empty(0, dtype=torch.uint8, device=self.storage.device)
        return view.set_(self.storage, 0, (self.num_bytes,))  # type: ignore[call-overload, no-any-return]


def host_slots(tensors: Iterable[Tensor], device: torch.device) -> list[HostSlot]:
    """The storages behind `tensors` that lie on `device`, each once, concatenated."""
    found: dict[int, HostSlot] = {}
    start = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if tensor.device == device and storage.nbytes() and storage.data_ptr() not in found:
            slot = HostSlot(storage, storage.nbytes(), start)
            found[storage.data_ptr()] = slot
            start = -(-slot.end // ALIGN) * ALIGN
    return list(found.values())


def kept(model: Model, optimizer: Optimizer) -> Iterator[Tensor]:
    """Everything that must come back as it was."""
    for module in model.modules:
        yield from (value.detach() for value in module.parameters())
        yield from module.buffers()
    yield from optimizer_params(optimizer)
    for adam in optimizer.adams():
        for state in adam.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


def optimizer_params(optimizer: Optimizer) -> Iterator[Tensor]:
    """What the inner optimizers step: this rank's shards of the master weights."""
    for adam in optimizer.adams():
        for group in adam.param_groups:
            yield from group["params"]


def gradients(model: Model) -> Iterator[Tensor]:
    """DDP's flat gradient buffers."""
    for chunk in model.chunks:
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
            yield buffer.grad_data


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def residue(device: torch.device) -> dict[str, float]:
    """GiB that stay on a CUDA device: torch's own, torch's cached, and all that the driver counts, other processes'
    included. Empty on cpu."""
    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    amounts = {
        "allocated": torch.cuda.memory_allocated(device),
        "reserved": torch.cuda.memory_reserved(device),
        "driver": total - free,
    }
    return {f"residue/{name}_gib": amount / 2**30 for name, amount in amounts.items()}
