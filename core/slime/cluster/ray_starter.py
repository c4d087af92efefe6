"""Ray under a run, and what a plugin for it implements (hook `slime_ray_starters`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from slime import plugins
from slime.errors import Death
from slime.topology.topology import Topology

TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"


class RayHosts(Protocol):
    """Ray on every host of a run; `is_own`: it was started for this run."""

    is_own: bool

    def lost(self, what: str) -> Mapping[int, Death]:
        """The hosts that were lost while the run does `what`, of those that were brought up for it, by number."""

    def bring_back(self) -> None:
        """Begin to bring up again, where that is possible, each host that was lost. Waits for none."""

    def end_of(self, name: str) -> str:
        """How the process `name` of Ray has ended that was started here (`gcs_server`, `raylet`), as a part of a
        sentence; empty while it lives, or if it was not started here."""


class RayHere(Protocol):
    """Ray on this host, to which this process is connected."""

    @property
    def mark(self) -> str:
        """The run's mark in the names of everything temporary that it leaves on a host."""

    @property
    def is_left(self) -> bool:
        """Whether another driver of the run has left it, which was killed, with what runs in it."""

    def staying(self, seconds: float) -> AbstractContextManager[None]:
        """Where this process is killed in the block, Ray and what runs in it stay that long (0: they end), for the next
        `ray_here` of the same run, config and software."""

    def everywhere(self, topology: Topology, logs: Path) -> AbstractContextManager[RayHosts]:
        """Ray on the run's other hosts, too, until the block ends.

        Args:
            logs: folder of the run directory.

        Raises:
            SlimeError: Ray does not start on some host; each is named.
        """


def ray_here(topology: Topology, run: Path | None = None) -> AbstractContextManager[RayHere]:
    """Ray on this host, for a run of which nothing is on the disk yet: brought up, or joined at `cluster.ray_address`,
    by what is installed. All that this process starts in the block ends soon after the block or the process, whatever
    ends that, but for `RayHere.staying`.

    Args:
        run: directory of the run that takes over what another driver of it has left.

    Raises:
        SlimeError: at once: this host lacks what Ray would need; in the block: Ray does not start, or is not there;
            this host is none of the run's.
    """
    (starter,) = plugins.load().registries["ray_starter"]  # a run is refused where none is installed
    here: AbstractContextManager[RayHere] = starter.factory(topology, run)
    return here


def token_file() -> Path:
    """Where Ray looks for its token if the environment does not hold it."""
    return Path(os.environ.get(TOKEN_PATH) or Path.home() / ".ray/auth_token").expanduser()
