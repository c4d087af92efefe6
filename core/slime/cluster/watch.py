"""Who of a run still lives: its actors, and the processes of Ray that they depend on."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import psutil

from slime.cluster.actors import Actor
from slime.cluster.placement import this_node
from slime.errors import SlimeError

if TYPE_CHECKING:
    from ray.exceptions import RayError

    from slime.cluster.ssh import Sessions
    from slime.rollout.engine import End

CONNECT_S = 0.5
"""How long a port may take to answer; only one that refuses counts as closed."""
RETURN_S = 30.0
"""Seconds that the GCS of a cluster that was there before may be gone: some clusters restart it."""
LOG_BYTES = 1 << 16
"""Of the end of a dead process's log, where its crash would be told."""
_CRASHES = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating-point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
"""Signal by the name that faulthandler writes."""


P = ParamSpec("P")


class Death(SlimeError):
    """A process of the run has ended, and is named."""


@dataclass
class Member:
    """An actor of the run, and where it lives once it has checked in.

    Attributes:
        name: such as `trainer-0` or `engine-1`; its log and its stacks are called so.
        node: Ray's id of the host.
    """

    name: str
    actor: Any
    node: str = ""
    host: str = ""
    pid: int = 0

    def call(self, method: Callable[Concatenate[Any, P], Any], *args: P.args, **kwargs: P.kwargs) -> Any:
        """Begin `method`, one of the actor's class, so that its arguments are type-checked; returns Ray's reference."""
        return getattr(self.actor, method.__name__).remote(*args, **kwargs)

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid} on {self.host})" if self.pid else self.name


class Watch:
    """Asks after every actor again and again: a question to a dead one fails at once, one to a busy one waits.

    Args:
        members: the actors.
        logs: the run's, where their last words are.
        sessions: with the hosts on which Ray was started over ssh.
        is_own_ray: Ray was started for this run, by this process.
    """

    def __init__(self, members: Sequence[Member], logs: Path, sessions: Sessions, *, is_own_ray: bool) -> None:
        nodes = {this_node(), *(member.node for member in members)}
        self._logs, self._sessions, self._ray = logs, sessions, _Ray(nodes, 0.0 if is_own_ray else RETURN_S)
        self._asked: dict[Any, Member] = {member.call(Actor.ping): member for member in members}

    def fault(self, what: str) -> Death | None:
        """The first death that is found, or None. Returns soon, however many are busy.

        Args:
            what: the run does.
        """
        return self._sessions.fault(what) or self._ray.fault(what) or self._dead_actor(what)

    def _dead_actor(self, what: str) -> Death | None:
        import ray

        ends = []
        answered, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        for ref in answered:
            member = self._asked[ref]
            try:
                ends.append(ray.get(ref))
            except ray.exceptions.RayError as error:
                return died(member, error, what, self._logs)
            del self._asked[ref]
            self._asked[member.call(Actor.ping)] = member
        return first_end(ends)


class _Ray:
    """Ray's GCS and the raylets of `nodes` (Ray's ids), by whether they accept connections."""

    def __init__(self, nodes: Collection[str], return_s: float) -> None:
        import ray

        self._return_s, self._gone_since = return_s, 0.0
        self._gcs = ray.get_runtime_context().gcs_address
        self._raylets = [
            (node["NodeManagerHostname"], f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
            for node in ray.nodes()
            if node["NodeID"] in nodes
        ]

    def fault(self, what: str) -> Death | None:
        """The death of the GCS, or of a raylet."""
        for host, address in self._raylets:
            if _refuses(address):
                return _ended("raylet", f"on {host}", address, what)
        if not _refuses(self._gcs):
            self._gone_since = 0.0
            return None
        self._gone_since = self._gone_since or time.monotonic()
        if time.monotonic() - self._gone_since < self._return_s:
            return None
        return _ended("gcs_server", f"at {self._gcs}", self._gcs, what)


def _refuses(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:  # it may only be slow
        return False
    return False


def _ended(name: str, place: str, address: str, what: str) -> Death:
    return Death(
        f"{_end_of_child(name)} while {what}: nothing listens at {address} any more",
        where=f"Ray's {name} {place}",
        todo="Ray's own logs may say why. Start the same command again to resume.",
    )


def _end_of_child(name: str) -> str:
    """How this process's child `name` ended, as long as nobody has asked; of others that cannot be known."""
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess, ChildProcessError):
            if child.name() == name and child.status() == psutil.STATUS_ZOMBIE:
                result = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
                assert result
                if result.si_code == os.CLD_EXITED:
                    return f"(pid {child.pid}) ended with exit code {result.si_status}"
                return f"(pid {child.pid}) was killed by {signal.Signals(result.si_status).name}"
    return "has ended"


def first_end(ends: Iterable[End | None]) -> Death | None:
    """The death of the server that ended first: one that loses a rank on another host dies of that, soon after.

    A few milliseconds may lie between the two, no more than between the clocks of two hosts; so one that was killed
    comes before one that gave up.
    """
    known = [end for end in ends if end]
    if not known:
        return None
    first = min(known, key=lambda end: (not end.killed, end.at)).error
    return Death(first.what, where=first.where, todo=first.todo)


def died(member: Member, error: RayError, what: str, logs: Path) -> Death:
    """The death of an actor, with everything that it and Ray left to say."""
    log = logs / f"{member.name}.log"
    return Death(
        f"{_crash(log) or _as_ray_tells(error)} while {what}",
        where=str(member),
        todo=f"Read {log}, then start the same command again to resume.",
    )


def _crash(log: Path) -> str:
    """The signal, and where it struck, if faulthandler wrote both into the process's log."""
    with suppress(OSError), log.open("rb") as file:  # of another host, whose disk is not ours
        file.seek(max(log.stat().st_size - LOG_BYTES, 0))
        told = file.read().decode(errors="replace")
        if crash := re.search(r"^Fatal Python error: ([^\n]*)", told, re.M):
            name = _CRASHES.get(crash[1], crash[1])
            frame = re.search(r'Current thread .*?\n  File "([^"]*)", line (\d+) in (\S+)', told[crash.end() :], re.S)
            return f"was killed by {name}" + (f" in {frame[3]} ({Path(frame[1]).name}:{frame[2]})" if frame else "")
    return ""


def _as_ray_tells(error: RayError) -> str:
    """A process that had no time for a word was killed by SIGKILL: all other signals leave one."""
    told = str(error)
    if "End of file" in told:
        return "was killed by SIGKILL, it seems, as it left no word (for memory: see dmesg)"
    _, found, detail = told.partition("Worker exit detail: ")
    lines = [line.strip() for line in (detail if found else told).splitlines() if line.strip()]
    return f"died ({lines[0].rstrip('.')})" if lines else f"died ({type(error).__name__})"
