"""What a plugin that brings weights to engines implements (hook `slime_transports`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

from slime.config.schema import WeightsConfig
from slime.errors import SlimeError
from slime.topology.links import Link
from slime.topology.topology import Topology


@runtime_checkable
class Transport(Protocol):
    """A way for weight versions to reach the engines, chosen by `weights.transport`.

    It has three sides. This object is the plan's: it must not import torch, and keeps nothing between calls. The
    trainer's side is `sender`. The engine's side, where requests name it (`EngineLink.ask`), is an entry point of group
    `slime_receivers`, under the transport's name: SGLang's processes import no plugin. It is called on every rank of
    the engine, with what the request said and an `EngineSide`, and returns what loading the last bucket returned.
    """

    @property
    def sender(self) -> str:
        """`module:name` of what makes a rank's `Sender` of a `TrainerSide`: on every trainer rank, at the same time."""

    @property
    def copy_rate(self) -> float | None:
        """Bytes/s of a version inside hosts, from whole tensors to verified parameters; None: not measured, so that the
        plan estimates no seconds."""

    def problems(self, topology: Topology) -> Iterable[SlimeError]:
        """Why this run cannot publish so."""

    def links(self, topology: Topology, num_bytes: int) -> Iterable[Link]:
        """What carries a version of `num_bytes` bytes from the trainer ranks that serve engines to the engines."""


@runtime_checkable
class StoringTransport(Transport, Protocol):
    """A transport that keeps versions in a folder, of this run alone, and perhaps in the memory of hosts."""

    @property
    def folder(self) -> str:
        """The key of `weights` that names the folder. Every host of the run sees it by the same path."""

    def stored(self, weights: WeightsConfig, num_bytes: int) -> tuple[str, int]:
        """What the folder holds at the end of publishing a version of `num_bytes`: in words, and at least how many
        bytes."""

    def to_write(self, folder: Path, num_bytes: int) -> int:
        """Bytes that must be free in the folder, besides what is there."""

    def kept(self, weights: WeightsConfig, num_bytes: int) -> int:
        """Bytes of host memory that a publishing rank, and each engine on its hosts, keep between versions."""
