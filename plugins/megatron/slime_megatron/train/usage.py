"""How long parts of a step take, and the most that a trainer rank's device and process hold meanwhile."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from slime.train.rank import Usage
from slime_megatron.train import host_memory


def peak_usage(device: torch.device) -> Usage:
    """Since the last reading, or since the process began."""
    usage = Usage(platform.node(), _of_device(device), host_memory.peak())
    host_memory.reset_peak()
    return usage


def _of_device(device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    given_back = torch.cuda.max_memory_reserved(device) - torch.cuda.memory_reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    return total - free + given_back


@contextmanager
def timed(name: str, device: torch.device, found: dict[str, float]) -> Iterator[None]:
    """Wall time of the block, device work included, as `seconds/<name>`; on GPUs also what this rank held at most,
    GiB: `memory/<name>_gib` allocated on its device, `memory/<name>_host_gib` in host memory."""
    on_gpu, start = device.type == "cuda", time.perf_counter()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
        host_memory.reset_peak()
    yield
    if on_gpu:
        torch.cuda.synchronize()
        found[f"memory/{name}_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
        found[f"memory/{name}_host_gib"] = host_memory.peak() / 2**30
    found[f"seconds/{name}"] = time.perf_counter() - start
