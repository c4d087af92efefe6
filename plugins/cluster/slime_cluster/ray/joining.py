"""The hosts of a run that a launcher brought up, and Ray's processes on this one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from slime.cluster.placement import HOST_LABEL
from slime.errors import Death, SlimeError
from slime.topology.launcher import RemoteProcess, lost_host
from slime_cluster.ray.node import OwnRay

POLL_S = 0.2
OTHERS_S = 20.0
"""Seconds that the other hosts get to fail too, once one has: all of them are named at once."""


class Hosts:
    """A `slime.cluster.ray_starter.RayHosts`.

    Args:
        processes: on the other hosts; none without a launcher.
        here: what was started on this one.
        begin: has the order of a host, by name, carried out again.
    """

    def __init__(
        self,
        processes: Sequence[RemoteProcess],
        here: OwnRay,
        *,
        is_own: bool,
        begin: Callable[[str], Sequence[RemoteProcess]] = lambda name: (),
    ) -> None:
        self._processes, self._here, self.is_own = processes, here, is_own
        self._begin = begin

    def lost(self, what: str) -> dict[int, Death]:
        return {process.number: death for process in self._processes if (death := lost_host(process, what))}

    def bring_back(self) -> None:
        """See `slime.cluster.ray_starter.RayHosts.bring_back`."""
        begun = {each.number: each for gone in self._processes if gone.end() for each in self._begin(gone.name)}
        self._processes = [begun.get(process.number, process) for process in self._processes]

    def end_of(self, name: str) -> str:
        return self._here.end_of(name)

    def wait_joined(self, timeout_s: float) -> None:
        """Wait until Ray knows every host; raises SlimeError naming those that failed, or were not there in time."""
        deadline = time.monotonic() + timeout_s
        while missing := self._missing():
            ended = [process for process in missing if process.end()]
            if ended:
                deadline = min(deadline, time.monotonic() + OTHERS_S)
            if len(ended) == len(missing) or time.monotonic() > deadline:
                facts = {process.name: process.end() or "did not join in time" for process in missing}
                what = "; ".join(f"{name}: {fact}" for name, fact in facts.items())
                todo = " ".join(dict.fromkeys(process.todo() for process in missing))
                raise SlimeError(what, where="cluster.hostfile", todo=todo)
            time.sleep(POLL_S)

    def _missing(self) -> list[RemoteProcess]:
        import ray

        joined = {node["Labels"].get(HOST_LABEL) for node in ray.nodes() if node["Alive"]}
        return [process for process in self._processes if str(process.number) not in joined or process.end()]
