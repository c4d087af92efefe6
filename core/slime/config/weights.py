"""The section `weights` of `slime.config.schema`: how weights reach the engines."""

from __future__ import annotations

from dataclasses import dataclass

from slime.config.declare import DEVICES, Bound, key

AUTO = "auto"


@dataclass
class WeightsConfig:
    bucket_mb: int = key(512, Bound(1, 10**6))
    """MiB of tensors handed to the engines at once while publishing; two such buckets take turns, three where they are
    broadcast."""
    transport: str = AUTO
    """ipc: engines map the publisher's memory (colocated GPUs, or cpu on one host); broadcast: a process group of
    rank 0 and the engines, over NCCL (gloo on cpu); auto: ipc where it can be, else broadcast; or the transport of a
    plugin, such as disk: by way of files (`docs/publishing.md`)."""
    num_sources: int = key(1, DEVICES)
    """Trainer ranks that broadcast at once, each what it holds of the model (pipeline stage, experts, replica); 1: rank
    0 gathers and sends all. Engines have memory for one bucket more."""
