"""The other hosts of a run, as a launcher brought them up."""

from __future__ import annotations

import time
from collections.abc import Sequence

from slime import plugins
from slime.cluster.placement import HOST_LABEL
from slime.config.schema import ClusterConfig
from slime.errors import Death, SlimeError
from slime.topology.launcher import Launcher, RemoteProcess, launcher_name

POLL_S = 0.2
OTHERS_S = 20.0
"""Seconds that the other hosts get to fail too, once one has: all of them are named at once."""


def launcher_of(cluster: ClusterConfig) -> Launcher | None:
    """The launcher of a config without problems; None: there are no hosts to bring up."""
    name = launcher_name(cluster)
    launcher: Launcher | None = plugins.load().launchers.create(name) if name else None
    return launcher


class RemoteHosts:
    """What runs on them for a run or a conversion; none without a launcher."""

    def __init__(self, processes: Sequence[RemoteProcess]) -> None:
        self._processes = processes

    def fault(self, what: str, *, may_end: bool = False) -> Death | None:
        """The first host that was lost, or None.

        Args:
            what: the run does.
            may_end: what runs there may end well before this process.
        """
        for process in self._processes:
            if (end := process.end()) and not (may_end and process.succeeded()):
                todo = f"Read {process.log}, see to the host, then start the same command again to resume."
                return Death(f"the host was lost while {what}: {end}", where=f"host {process.name}", todo=todo)
        return None

    def wait_joined(self, timeout_s: float) -> None:
        """Wait until Ray knows every host.

        Raises:
            SlimeError: hosts that failed, or were not there in time; each is named.
        """
        deadline = time.monotonic() + timeout_s
        while missing := self._missing():
            ended = [process for process in missing if process.end()]
            if ended:
                deadline = min(deadline, time.monotonic() + OTHERS_S)
            if len(ended) == len(missing) or time.monotonic() > deadline:
                raise _did_not_join(missing)
            time.sleep(POLL_S)

    def _missing(self) -> list[RemoteProcess]:
        import ray

        joined = {node["Labels"].get(HOST_LABEL) for node in ray.nodes() if node["Alive"]}
        return [process for process in self._processes if str(process.number) not in joined or process.end()]


def _did_not_join(missing: Sequence[RemoteProcess]) -> SlimeError:
    facts = {process.name: process.end() or "did not join in time" for process in missing}
    todo = " ".join(dict.fromkeys(process.todo() for process in missing))
    return SlimeError("; ".join(f"{name}: {fact}" for name, fact in facts.items()), where="cluster.hostfile", todo=todo)
