"""What SGLang makes of a weight when a model first runs, and keeps: brought up to date after every version.

What it makes while it loads (the absorbed projections of latent attention, fused matrices) it makes anew by itself.
"""

from __future__ import annotations

import torch

_COPIES = {"_weight_fp32": "weight"}
"""Attribute of a module, and the parameter of the same module of which it is a copy in another precision. The routers
of some mixtures of experts have one."""


@torch.no_grad()
def refresh(model: torch.nn.Module) -> None:
    """Copy in place: captured CUDA graphs read these copies by their address."""
    for module in model.modules():
        for copy, original in _COPIES.items():
            kept = getattr(module, copy, None)
            if kept is not None:
                kept.copy_(getattr(module, original))
