"""The inference server that engines run: a distribution of its own, behind one seam."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, cast

from slime.config.schema import Device, Role, RolloutConfig, SlimeConfig
from slime.engine_client.client import Engine, EngineClient
from slime.engines.scratch import Rendezvous
from slime.errors import SlimeError, did_you_mean
from slime.extras import install
from slime.net import Endpoint, Secret
from slime.topology.topology import Topology

ENGINES = "slime_engines"
"""Entry-point group: the name of an inference server (`rollout.backend`) -> its `slime.engines.software.Software`,
read by the driver and by what keeps an engine. Core imports none of them (docs/writing-an-engine.md)."""


@dataclass(frozen=True)
class End:
    """The end of a server that nobody stopped: whether it was killed from outside, and so not because another server
    had ended; when the first of its processes ended, in seconds since the epoch by its host's clock; how, with the end
    of its log."""

    killed: bool
    at: float
    error: SlimeError


class Server(Protocol):
    """One server on this host, from start to stop. It ends with the process that started it, however that ends."""

    endpoint: Endpoint
    """The address at which it answers, once it is up."""

    @property
    def pid(self) -> int:
        """Process id, and id of the process group that holds everything the engine started."""

    def start(self) -> Endpoint:
        """Start the server and wait until it answers.

        Raises:
            Death: it was killed, which may not come again.
            SlimeError: it ended by itself (with the end of its log), or was not up within `cluster.start_timeout_s`
                seconds.
        """

    def end(self, *, waits: bool = False) -> End | None:
        """How it has ended; None if it lives. `waits` gives one that is about to end the time to."""

    def release_memory(self, tags: Sequence[str]) -> None:
        """Give the device memory behind `tags` back, once the last request has left the engine."""

    def resume_memory(self, tags: Sequence[str]) -> None:
        """Take the device memory behind `tags` again; what it held is lost."""

    def stop(self) -> None:
        """Kill the server and all its workers."""


class Software(Protocol):
    """An inference server."""

    def server(
        self,
        topology: Topology,
        index: int = 0,
        node_rank: int = 0,
        rendezvous: Rendezvous | None = None,
        *,
        host: str,
        log: Path,
        devices: Sequence[str] = (),
        key: Secret | None = None,
        mark: str = "",
    ) -> Server:
        """The server of one engine, or of its part on this host; it is not started yet.

        Args:
            topology: of the run.
            index: which engine of it, counted over all groups.
            node_rank: which process of the engine, one a host.
            rendezvous: of an engine over several hosts.
            host: address it listens on.
            log: file its output is appended to.
            devices: CUDA devices it uses, as CUDA_VISIBLE_DEVICES names them; empty: those of this process.
            key: what requests must carry; None: one of its own.
            mark: of the run, in the names of everything temporary that it leaves on the host.
        """

    def client(self, endpoint: Endpoint, timeout_s: float, *, log: Path | None = None) -> EngineClient:
        """Requests to a server, of which each but those that generate may take `timeout_s`; `log` is named in
        errors."""

    async def pairs(self, roles: Iterable[Role], clients: Sequence[EngineClient]) -> Engine:
        """Prefill and decode engines as one; `roles` are those of `clients`."""

    async def require_room(self, clients: Sequence[EngineClient], cfg: SlimeConfig) -> None:
        """Check the limits of running engines: their pool's size is known to them alone.

        Raises:
            SlimeError: a sequence may be longer than an engine takes.
        """

    def require_transfer(self, device: Device) -> None:
        """Look for what moves KV caches from prefill to decode engines, on this host.

        Raises:
            SlimeError: naming what to install.
        """


def software(device: Device, name: str = RolloutConfig.backend) -> Software:
    """The server that a run's engines are (`rollout.backend`).

    Raises:
        SlimeError: no distribution that brings it is installed on this host, or several are.
    """
    found = entry_points(group=ENGINES, name=name)
    if not found:
        what = "engines need slime-sglang, which is not installed here"
        raise next(backend_problems(name), SlimeError(what, todo=install(device.value)))
    if len(found) > 1:
        brought = sorted(entry.dist.name for entry in found if entry.dist)
        ways = " or ".join(f"'pip uninstall {each}'" for each in brought)
        what = f"engines named '{name}' are brought by {' and by '.join(brought)}"
        raise SlimeError(what, where="rollout.backend", todo=f"Keep one: {ways}.")
    return cast(Software, next(iter(found)).load())


def backend_problems(name: str) -> Iterator[SlimeError]:
    """The problem that no server of that name is there. A plan does without the default, whatever is installed."""
    known = {RolloutConfig.backend, *entry_points(group=ENGINES).names}
    if name not in known:
        what = f"no engine named '{name}' is installed"
        yield SlimeError(what, where="rollout.backend", todo=did_you_mean(name, known))
