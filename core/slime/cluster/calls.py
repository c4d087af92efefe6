"""The one place that calls actors and waits for them: whoever dies or hangs meanwhile is named."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from slime.cluster.actors import Actor, EngineActor
from slime.cluster.ray_starter import RayHosts
from slime.cluster.stacks import FILE as HANG_FILE
from slime.cluster.stacks import OWN, engine_of
from slime.cluster.stacks import take as take_stacks
from slime.cluster.watch import Member, Watch, died, first_end, first_unspared
from slime.errors import Consequence, Death, NoAnswer, SlimeError
from slime.topology.placement import ENGINE
from stack_dumps.blame import apart, suspects

if TYPE_CHECKING:
    from ray.exceptions import RayError

    from slime.engines.software import End

STOP_S = 3.0
"""How long work that asks engines has to end once it is cancelled."""
ASK_S = 10.0
"""How long engines have to say that they live; one that is busy does not answer, and lives."""
WATCH_S = 1.0
"""How often it is asked, while something lasts, who still lives."""
CAUSE_S = 10.0
"""How long the failure that another one follows from has to come."""
_ASKING = "it was asked who lives"
P = ParamSpec("P")
T = TypeVar("T")


def _spare_nobody(member: Member, death: Death) -> bool:
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


@dataclass
class Calls:
    """Calls of the run's actors.

    Attributes:
        logs: folder of the run directory.
        hosts: of the run.
        tell: called every second that something lasts, with what, and the names of those who have not answered.
        restarts: of engines that die; None: each death ends the run.
    """

    trainers: list[Member]
    engines: list[Member]
    logs: Path
    hosts: RayHosts
    tell: Callable[[str, list[str]], None] = lambda what, whom: None
    restarts: Restarting | None = None
    _watch: Watch | None = None
    _watching: threading.RLock = field(default_factory=threading.RLock)
    _beside: dict[Any, tuple[Member, str]] = field(default_factory=dict)
    _left: set[str] = field(default_factory=set)

    def check_in(self, limit_s: float) -> None:
        """Learn where the actors are; from now on they are watched."""
        places = self.all(self._members, "starting", limit_s, Actor.check_in)
        for member, place in zip(self._members, places, strict=True):
            member.node, member.host, member.pid = place
        self._watch = Watch(self._members, self.logs, self.hosts)

    def all(
        self,
        members: Sequence[Member],
        what: str,
        limit_s: float,
        method: Callable[Concatenate[Any, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[T]:
        """What `method` of an actor returns on every one of `members`; see `wait`."""
        return self.wait({member.call(method, *args, **kwargs): member for member in members}, what, limit_s)

    def watch_beside(self, calls: Mapping[Any, Member], what: str) -> None:
        """Have every `wait` raise the failure of `calls`, too, as long as they last."""
        self._beside |= {ref: (member, what) for ref, member in calls.items()}

    def is_busy_beside(self, member: Member) -> bool:
        """Whether `member` still has a call of `watch_beside` to answer, as far as is known, or starts again."""
        return member.name in self._left or any(busy is member for busy, _ in self._beside.values())

    def wait(self, calls: Mapping[Any, Member], what: str, limit_s: float) -> list[Any]:
        """Results of remote calls, in order. The first failure is raised at once; silence ends with every stack.

        Args:
            calls: reference to the actor that was called.

        Raises:
            SlimeError: naming the process that died, or those that gave no answer within `limit_s` seconds.
        """
        import ray

        pending, deadline = list(calls), time.monotonic() + limit_s
        while pending:
            limit = min(WATCH_S, max(0.0, deadline - time.monotonic()))
            ready, _ = ray.wait(list(dict.fromkeys([*pending, *self._beside])), num_returns=1, timeout=limit)
            if ready:
                (ref,) = ready
                member, doing = self._beside.pop(ref) if ref in self._beside else (calls[ref], what)
                pending = [other for other in pending if other != ref]
                try:
                    self._get(ref, member, doing)
                except Consequence as error:
                    raise self._cause({other: calls[other] for other in pending}, what) or error from None
                continue
            self.look(what)
            if time.monotonic() >= deadline:
                raise self._late([calls[ref] for ref in pending], what, limit_s)
            self.tell(what, [calls[ref].name for ref in pending])
        return [self._get(ref, member, what) for ref, member in calls.items()]

    async def watched(self, work: Coroutine[Any, Any, T], what: str) -> T:
        """The result of `work`, which asks engines; the death of one of the run's processes ends it within seconds.

        Raises:
            SlimeError: naming the process that died.
        """
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([task], timeout=WATCH_S))[0]:
                await asyncio.to_thread(self.look, what)
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait([task], timeout=STOP_S)

    def look(self, what: str) -> None:
        """See who has died, and how far the engines are that start again.

        Args:
            what: the run does.

        Raises:
            SlimeError: naming a process that died, without which the run cannot go on.
        """
        with self._watching:
            spare = self.restarts.spare if self.restarts else _spare_nobody
            if fault := self._watch.fault(what, spare) if self._watch else None:
                raise self._explained(fault)
            if self.restarts:
                self.restarts.advance()

    def look_closely(self, what: str) -> None:
        """`look`, which does not miss an engine that is about to end."""
        ends, gone = self._ends()
        with self._watching:
            spare = self.restarts.spare if self.restarts else _spare_nobody
            fault = first_unspared(ends, spare)
            for member, error in gone:
                member.has_died = True
                if not spare(member, death := died(member, error, what, self.logs)):
                    fault = fault or death
            if fault:
                raise self._explained(fault)
        self.look(what)

    def leave(self, members: Sequence[Member]) -> None:
        """Look after `members` no more, until they `join`."""
        assert self._watch, "they have checked in"
        self._watch.leave(members)
        self._left |= {member.name for member in members}

    def join(self, members: Sequence[Member]) -> None:
        """Look after `members` again."""
        assert self._watch, "they have checked in"
        self._watch.join(members)
        self._left -= {member.name for member in members}

    @contextlib.contextmanager
    def naming_causes(self) -> Iterator[None]:
        """Replace an error by the one of the process that died or hangs, if that caused it."""
        try:
            yield
        except Death:
            raise
        except Exception as error:
            cause = self._dead() or (self._hanging(error) if isinstance(error, NoAnswer) else None)
            if cause is None:
                raise
            raise cause from error

    def _dead(self) -> Death | None:
        """Of the run's processes one that has ended: Ray's, actors, and then the engines' servers."""
        fault = self._fault(_ASKING) or self._dead_engine()
        return fault and self._explained(fault)

    def _explained(self, fault: Death) -> Death:
        """With why an engine that has died is not started again."""
        if not self.restarts or not self.restarts.why_not or not fault.where.startswith(ENGINE):
            return fault
        return Death(fault.what, where=fault.where, todo=f"{fault.todo} {self.restarts.why_not}")

    def _dead_engine(self) -> Death | None:
        ends, gone = self._ends()
        # Ray may have failed this question before the one that the watch has asked.
        actors = (died(member, error, _ASKING, self.logs) for member, error in gone)
        return first_end(end for _, end in ends) or self._fault(_ASKING) or next(actors, None)

    def _ends(self) -> tuple[list[tuple[Member, End]], list[tuple[Member, RayError]]]:
        """Engines whose servers have ended, or do so within seconds; and those whose actors have."""
        import ray

        # One that is still starting does not answer before it is up; if it fails, that call tells.
        asked = {engine.call(EngineActor.end): engine for engine in self.engines if not self.is_busy_beside(engine)}
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

    def _fault(self, what: str) -> Death | None:
        with self._watching:
            return self._watch.fault(what) if self._watch else None

    def _cause(self, calls: Mapping[Any, Member], what: str) -> SlimeError | None:
        """The first failure that is not of another, of calls that have begun to fail."""
        import ray

        answered, _ = ray.wait(list(calls), num_returns=len(calls), timeout=CAUSE_S) if calls else ([], [])
        for ref in answered:
            try:
                self._get(ref, calls[ref], what)
            except Consequence:
                continue
            except SlimeError as error:
                return error
        return None

    def _get(self, ref: Any, member: Member, what: str) -> Any:
        import ray

        try:
            return ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, SlimeError):
                raise error.cause from None
            raise
        except ray.exceptions.RayError as error:
            raise self._fault(what) or died(member, error, what, self.logs) from error

    def _late(self, pending: Sequence[Member], what: str, limit_s: float) -> SlimeError:
        told = f"no answer within {limit_s:g} s while {what}"
        return SlimeError(
            f"{told}: {suspects(take_stacks(self._members, self.logs, told), pending, OWN)}",
            where=pending[0].name,
            todo=f"{self._stacks} Raise cluster.hang_timeout_s if it was only slow.",
        )

    def _hanging(self, error: NoAnswer) -> SlimeError:
        """The error with every stack taken. Those are named that give none, or else ranks that stand apart."""
        seen = take_stacks(self._members, self.logs, str(error))
        told = suspects(seen, [], OWN) or apart(seen, engine_of) or f"all {len(seen)} processes answer a signal"
        return SlimeError(f"{error.what}; {told}", where=error.where, todo=f"{self._stacks} {error.todo}")

    @property
    def _stacks(self) -> str:
        return f"The stacks of all processes are in {self.logs / HANG_FILE}."

    @property
    def _members(self) -> list[Member]:
        return [*self.trainers, *self.engines]
