"""Who of a run still lives: its actors, and the processes of Ray that they depend on."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol

from slime.cluster.actors import Actor, EngineActor
from slime.cluster.placement import HOST_LABEL, this_node
from slime.errors import Death

if TYPE_CHECKING:
    from ray.exceptions import RayError

    from slime.cluster.ray_starter import RayHosts
    from slime.engines.software import End

WATCH_S = 1.0
"""How often it is asked, while something lasts, who still lives."""
ASK_S = 10.0
"""How long engines have to say that they live; one that is busy does not answer, and lives."""
CONNECT_S = 0.5
"""How long a port may take to answer; only one that refuses counts as closed."""
RETURN_S = 30.0
"""Seconds that the GCS of a cluster that was there before may be gone: some clusters restart it."""
LOG_BYTES = 1 << 16
"""Bytes of the end of a dead process's log, where its crash would be told."""
_CRASHES = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating-point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
"""Signal by the name that faulthandler writes."""


P = ParamSpec("P")


@dataclass
class Member:
    """An actor of the run, and where it lives once it has checked in; `node` is Ray's id of the host.

    Attributes:
        name: such as `trainer-0` or `engine-1`; its log and its stacks are called so.
        make: another such actor, in the same place.
        has_died: the actor itself, not only what it keeps.
    """

    name: str
    actor: Any
    make: Callable[[], Any] | None = None
    has_died: bool = False
    node: str = ""
    host: str = ""
    pid: int = 0

    def call(self, method: Callable[Concatenate[Any, P], Any], *args: P.args, **kwargs: P.kwargs) -> Any:
        """Begin `method`, one of the actor's class, so that its arguments are type-checked; returns Ray's reference."""
        return getattr(self.actor, method.__name__).remote(*args, **kwargs)

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid} on {self.host})" if self.pid else self.name


Spare = Callable[[Member, Death], bool]


def spare_nobody(member: Member, death: Death) -> bool:
    return False


class Restarting(Protocol):
    """Who starts engines again that have died. Nothing here waits.

    Attributes:
        why_not: a sentence on why engines of this run are never started again; empty: they are.
    """

    why_not: str

    def spare(self, member: Member, death: Death) -> bool:
        """Whether the run goes on: then a start has begun."""

    def advance(self) -> None:
        """See how far the starts are.

        Raises:
            SlimeError: one has failed, and there is none left.
        """


Lose = Callable[[str, Death], Death | None]
"""Told of a host (Ray's id) that is lost; the death that ends what the run does, or None: it goes on."""


class Watch:
    """Asks after every actor again and again: a question to a dead one fails at once, one to a busy one waits."""

    def __init__(
        self, members: Sequence[Member], logs: Path, hosts: RayHosts, lose: Lose = lambda node, death: death
    ) -> None:
        self._members, self._logs, self._lose, self._ray = members, logs, lose, _Ray(hosts)
        self._ray.attend({this_node(), *(member.node for member in members)})
        self._asked: dict[Any, Member] = {member.call(Actor.ping): member for member in members}

    def fault(self, what: str, spare: Spare = spare_nobody) -> Death | None:
        """The first death that is found while the run does `what`, or None. Returns soon, however many are busy. Where
        the run goes on without a member that has died, `spare` tells the watch to `leave` that."""
        return self.lost_host(what) or self._dead_actor(what, spare)

    def lost_host(self, what: str, *, asks_ray: bool = False) -> Death | None:
        """The same of the GCS, whose end every raylet follows, and of hosts; `asks_ray`: of those, too, of which only
        Ray knows, a minute later."""
        if fault := self._ray.fault(what):
            return fault
        lost = self._ray.lost(what)
        for node, death in (self._ray.known_dead(what) | lost if asks_ray else lost).items():
            self._ray.leave(node)
            if fault := self._lose(node, death):
                return fault
        return None

    def hosts_answer(self) -> bool:
        """Whether every host but the lost ones takes connections."""
        return self._ray.all_answer()

    def leave(self, members: Sequence[Member]) -> None:
        names = {member.name for member in members}
        self._asked = {ref: member for ref, member in self._asked.items() if member.name not in names}

    def join(self, members: Sequence[Member]) -> None:
        self.leave(members)
        self._ray.attend({this_node(), *(member.node for member in self._members)})
        self._asked |= {member.call(Actor.ping): member for member in members}

    def _dead_actor(self, what: str, spare: Spare) -> Death | None:
        import ray

        ends: list[tuple[Member, End]] = []
        answered, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        for ref in answered:
            if (member := self._asked.get(ref)) is None:  # one of an engine that was spared just now
                continue
            try:
                if end := ray.get(ref):
                    ends.append((member, end))
            except ray.exceptions.RayError as error:
                member.has_died = True
                death = died(member, error, what, self._logs)
                if spare(member, death):
                    continue
                return death
            del self._asked[ref]
            self._asked[member.call(Actor.ping)] = member
        return first_unspared(ends, spare)


@dataclass(frozen=True)
class _Node:
    host: str
    address: str
    number: str | None


class _Ray:
    """Ray's GCS, and the raylets of hosts that are attended, by whether they accept connections."""

    def __init__(self, hosts: RayHosts) -> None:
        import ray

        self._return_s, self._gone_since = 0.0 if hosts.is_own else RETURN_S, 0.0
        self._hosts, self._end_of = hosts, hosts.end_of
        self._gcs = ray.get_runtime_context().gcs_address
        self._nodes: dict[str, _Node] = {}
        self._left: set[str] = set()

    def attend(self, nodes: Collection[str]) -> None:
        """From now on look after these (Ray's ids), less those that were left."""
        import ray

        self._nodes = {
            node["NodeID"]: _Node(
                node["NodeManagerHostname"],
                f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}",
                node["Labels"].get(HOST_LABEL),
            )
            for node in ray.nodes()
            if node["NodeID"] in nodes and node["NodeID"] not in self._left
        }

    def leave(self, node: str) -> None:
        self._left.add(node)
        self._nodes.pop(node, None)

    def lost(self, what: str) -> dict[str, Death]:
        """The hosts whose raylets, or what was brought up there, have ended, by Ray's id."""
        gone, found = {str(number): death for number, death in self._hosts.lost(what).items()}, dict[str, Death]()
        for name, node in self._nodes.items():
            if node.number in gone:
                found[name] = gone[node.number]
            elif _refuses(node.address):
                found[name] = self._ended("raylet", f"on {node.host}", node.address, what)
        return found

    def known_dead(self, what: str) -> dict[str, Death]:
        """The hosts that Ray has given up, by its id."""
        import ray

        todo = "See to the host, then start the same command again to resume."
        gone = [node["NodeID"] for node in ray.nodes() if not node["Alive"] and node["NodeID"] in self._nodes]
        lost = f"the host was lost while {what}: Ray hears nothing of it"
        return {name: Death(lost, where=f"host {self._nodes[name].host}", todo=todo) for name in gone}

    def all_answer(self) -> bool:
        return all(_answers(node.address) for node in self._nodes.values())

    def fault(self, what: str) -> Death | None:
        """The death of the GCS."""
        if not _refuses(self._gcs):
            self._gone_since = 0.0
            return None
        self._gone_since = self._gone_since or time.monotonic()
        if time.monotonic() - self._gone_since < self._return_s:
            return None
        return self._ended("gcs_server", f"at {self._gcs}", self._gcs, what)

    def _ended(self, name: str, place: str, address: str, what: str) -> Death:
        return Death(
            f"{self._end_of(name) or 'has ended'} while {what}: nothing listens at {address} any more",
            where=f"Ray's {name} {place}",
            todo="Start the same command again to resume.",
        )


def _refuses(address: str) -> bool:
    return _answers(address) is False


def _answers(address: str) -> bool | None:
    """Whether something listens there; None: it may only be slow."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return None
    return True


def first_end(ends: Iterable[End | None]) -> Death | None:
    """The death of the server that ended first: one that loses a rank on another host dies of that, soon after.

    A few milliseconds may lie between the two, no more than between the clocks of two hosts; so one that was killed
    comes before one that gave up.
    """
    known = [end for end in ends if end]
    return _death(min(known, key=_rank)) if known else None


def first_unspared(ends: Iterable[tuple[Member, End]], spare: Spare) -> Death | None:
    """The same of the servers without which the run cannot go on."""
    for member, end in sorted(ends, key=lambda found: _rank(found[1])):
        if not spare(member, death := _death(end)):
            return death
    return None


def _rank(end: End) -> tuple[bool, float]:
    return not end.killed, end.at


def _death(end: End) -> Death:
    return Death(end.error.what, where=end.error.where, todo=end.error.todo)


def ends_of(engines: Sequence[Member]) -> tuple[list[tuple[Member, End]], list[tuple[Member, RayError]]]:
    """Engines whose servers have ended, or do so within seconds; and those whose actors have."""
    import ray

    asked = {engine.call(EngineActor.end): engine for engine in engines}
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ASK_S) if asked else ([], [])
    ends: list[tuple[Member, End]] = []
    gone: list[tuple[Member, RayError]] = []
    for answer in answered:
        try:
            if end := ray.get(answer):
                ends.append((asked[answer], end))
        except ray.exceptions.RayError as error:
            gone.append((asked[answer], error))
    return ends, gone


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
