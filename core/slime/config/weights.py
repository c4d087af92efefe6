"""The section `weights` of `slime.config.schema`: how weights reach the engines."""

from __future__ import annotations

from dataclasses import dataclass

from slime.config.choices import Transport


@dataclass
class WeightsConfig:
    bucket_mb: int = 512
    """MiB of tensors handed to the engines at once while publishing; two such buckets take turns, three where they are
    broadcast."""
    transport: Transport = Transport.auto
    """ipc: engines map the publisher's memory (colocated GPUs, or cpu on one host); broadcast: a process group of
    rank 0 and the engines, over NCCL (gloo on cpu); auto: ipc where it can be, else broadcast; disk: by way of files
    (`docs/publishing.md`)."""
    num_sources: int = 1
    """Trainer ranks that broadcast at once, each what it holds of the model (pipeline stage, experts, replica); 1: rank
    0 gathers and sends all. Engines have memory for one bucket more."""
    path: str = "${run.dir}/${run.name}/weights"
    """With `transport: disk`, the folder that versions are published in, of this run alone. Every host of the run sees
    it by the same path."""
    full_every: int = 20
    """With `transport: disk`: one version in so many is full, the others are deltas, of what changed since the version
    before; 1: all are full. Publisher and engines keep a version in host memory where deltas are written."""
