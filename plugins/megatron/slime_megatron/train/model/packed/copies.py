"""From the host to a device without waiting for it."""

from __future__ import annotations

import torch
from torch import Tensor


def on_device(values: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host, on `device`.

    From page-locked memory: a copy from any other waits until the GPU has done all that it was told before. It then has
    nothing to do until the host has told it more.
    """
    if device.type != "cuda" or not values.numel():
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)
