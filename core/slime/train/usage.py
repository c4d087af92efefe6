"""The most that a trainer rank's device and process held between two readings."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

from slime.train import host_memory


@dataclass(frozen=True)
class Usage:
    """Bytes of one rank.

    Attributes:
        host: its name.
        device: all that the driver counts on the rank's device, other processes' included, when this rank held most;
            None on cpu.
        process: resident memory of the process.
    """

    host: str
    device: int | None
    process: int


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
