"""The plan's side of the transport `disk`. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slime.config.schema import WeightsConfig
from slime.errors import SlimeError
from slime.topology.links import Link, Medium, Verb
from slime.topology.topology import Topology
from slime_sglang.disk.folder import stored
from slime_sglang.disk.options import disk_weights


class DiskTransport:
    """Rank 0 writes a folder a version, which each process of an engine reads."""

    sender = "slime_sglang.disk.publish:DiskSender"
    copy_rate = None
    folder = "weights.path"

    def problems(self, topology: Topology) -> Iterator[SlimeError]:
        yield from ()

    def links(self, topology: Topology, num_bytes: int) -> Iterator[Link]:
        yield Link(Verb.hand_over, "trainer 0", "disk", Medium.disk, num_bytes)
        for engine in topology.engines:
            for number, _ in enumerate(engine.nodes):
                yield Link(Verb.hand_over, "disk", f"{engine.name} process {number}", Medium.disk, num_bytes)
        for address in topology.outside:
            yield Link(Verb.hand_over, "disk", address, Medium.disk, num_bytes)

    def stored(self, weights: WeightsConfig, num_bytes: int) -> tuple[str, int]:
        full_every = disk_weights(weights).full_every
        deltas = f" and {full_every - 1} deltas" if full_every > 1 else ""
        return f"two full versions{deltas}", 2 * num_bytes

    def to_write(self, folder: Path, num_bytes: int) -> int:
        """A full version, and another that it replaces. Deltas, which are smaller, mostly by far, are left out."""
        return num_bytes * (1 if stored(folder) else 2)

    def kept(self, weights: WeightsConfig, num_bytes: int) -> int:
        """A version, if deltas are written."""
        return num_bytes if disk_weights(weights).full_every > 1 else 0
