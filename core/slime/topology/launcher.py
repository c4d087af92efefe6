"""What brings up the other hosts of a run, and what a plugin for it implements (hook `slime_launchers`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypedDict, runtime_checkable

from slime import plugins
from slime.config.schema import ClusterConfig
from slime.errors import Death, SlimeError

SSH = "ssh"


@dataclass(frozen=True)
class ThisHost:
    """This host among those of a run.

    Attributes:
        number: its index among them.
        address: at which the others reach it; empty if there are none.
    """

    number: int
    address: str


class Order(TypedDict):
    """What to run on another host. It is plain JSON; the token must stand in no argument, which everybody can read.

    Attributes:
        number: of the host, counted from 0.
        mark: of the run, in the names of everything temporary.
        environment: variables of what is run and of all that it starts, Ray's token among them.
        folder: in which it runs; empty: the user's.
        module: of Python that is run.
        arguments: of it.
    """

    number: int
    mark: str
    environment: dict[str, str]
    folder: str
    module: str
    arguments: Sequence[str]


class RemoteProcess(Protocol):
    """An order that is carried out on another host."""

    name: str
    """The host's name, as the user wrote it."""
    number: int
    log: Path

    def end(self) -> str:
        """How it ended, with its last line; empty while it lasts."""

    def succeeded(self) -> bool:
        """It ended by itself, and without a fault."""

    def todo(self) -> str:
        """What to do after it ended before its host had joined."""


@runtime_checkable
class Launcher(Protocol):
    """Knows the hosts of a run, and starts processes on those that are not this one.

    No process that it starts may outlive the block of `run`, nor this process, whatever ends them (`kill -9` as well).
    """

    def problems(self, cluster: ClusterConfig) -> Iterable[SlimeError]:
        """What is wrong with the keys that it reads."""

    def hosts(self, cluster: ClusterConfig) -> Sequence[str]:
        """All hosts by name, spare ones last, in the order of their numbers; without those of `cluster.exclude`.

        Raises:
            SlimeError: they are not known.
        """

    def this_host(self, cluster: ClusterConfig) -> ThisHost:
        """Which of them this one is.

        Raises:
            SlimeError: it is none of them, or it is not clear at which address the others reach it.
        """

    def run(self, orders: Mapping[str, Order], logs: Path) -> AbstractContextManager[Sequence[RemoteProcess]]:
        """Have each host's order carried out there until the block ends.

        Args:
            orders: by the host's name.
            logs: folder for what they print, a file a host.

        Raises:
            SlimeError: nothing can be started from here.
        """


def launcher_name(cluster: ClusterConfig) -> str | None:
    """`cluster.launcher`, or `ssh` where there is a hostfile; None: Ray is there, or on this host alone."""
    return cluster.launcher or (SSH if cluster.hostfile else None)


def launcher_of(cluster: ClusterConfig) -> Launcher | None:
    """The launcher of a config without problems; None: there are no hosts to bring up."""
    name = launcher_name(cluster)
    launcher: Launcher | None = plugins.load().launchers.create(name) if name else None
    return launcher


def lost(processes: Iterable[RemoteProcess], what: str, *, may_end: bool = False) -> Death | None:
    """The first host that was lost while `what` was done, or None; `may_end`: what runs there may end well before this
    process."""
    left = (process for process in processes if not (may_end and process.succeeded()))
    return next((death for process in left if (death := lost_host(process, what))), None)


def lost_host(process: RemoteProcess, what: str) -> Death | None:
    """The loss of one host; None: it is there."""
    if not (end := process.end()):
        return None
    todo = f"Read {process.log}, see to the host, then start the same command again to resume."
    return Death(f"the host was lost while {what}: {end}", where=f"host {process.name}", todo=todo)
