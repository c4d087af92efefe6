"""The key of `rollout` that the quantization `fp8` adds."""

from __future__ import annotations

from dataclasses import dataclass

from slime.config.rollout import RolloutConfig


@dataclass
class Fp8Rollout(RolloutConfig):
    fp8: str | None = None
    """block: engines hold the weights in FP8 (E4M3) with a scale for each 128 x 128 block; a folder: as the
    `quantization_config` of its config.json says, which weights stay as they are and how scales are rounded. It needs
    no weights: each publish quantises the trained ones. Empty: as they are trained."""
