"""The one place that calls actors and waits for them: whoever dies or hangs meanwhile is named."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from slime.cluster.actors import Actor
from slime.cluster.ray_starter import RayHosts
from slime.cluster.stacks import hanging, late
from slime.cluster.watch import (
    WATCH_S,
    Member,
    Restarting,
    Spare,
    Watch,
    died,
    ends_of,
    first_end,
    first_unspared,
    spare_nobody,
)
from slime.errors import Consequence, Death, Hang, NoAnswer, SlimeError
from slime.topology.placement import ENGINE

if TYPE_CHECKING:
    from slime.cluster.host_return import HostReturn

STOP_S = 3.0
"""How long work that asks engines has to end once it is cancelled."""
CAUSE_S = 10.0
"""How long the failure that another one follows from has to come."""
_ASKING = "it was asked who lives"
P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=SlimeError)


@dataclass(frozen=True)
class _Beside:
    """A call that lasts while others are waited for; `calls`: it and those of the processes that `member` needs."""

    member: Member
    what: str
    calls: Mapping[Any, Member]


@dataclass
class Calls:
    """Calls of the run's actors.

    Attributes:
        logs: folder of the run directory.
        hosts: of the run.
        tell: called every second that something lasts, with what, and the names of those who have not answered.
        replacing: hosts that are lost; None: each loss ends the run.
        restarts: of engines that die; None: each death ends the run.
        cancelled: what `watched` left last; it may still be on its way to its end.
    """

    trainers: list[Member]
    engines: list[Member]
    logs: Path
    hosts: RayHosts
    tell: Callable[[str, list[str]], None] = lambda what, whom: None
    replacing: HostReturn | None = None
    restarts: Restarting | None = None
    cancelled: asyncio.Task[Any] | None = None
    _watch: Watch | None = None
    _watching: threading.RLock = field(default_factory=threading.RLock)
    _beside: dict[Any, _Beside] = field(default_factory=dict)
    _left: set[str] = field(default_factory=set)

    def check_in(self, limit_s: float) -> None:
        """Learn where the actors are; from now on they are watched."""
        self._find(self._members, limit_s)
        self._watch = Watch(self._members, self.logs, self.hosts, self._lose)

    def check_in_again(self, members: Sequence[Member], limit_s: float) -> None:
        """The same of some that nobody looks after (`leave`), whose actors are new."""
        self._find(members, limit_s)
        self.join(members)

    def _find(self, members: Sequence[Member], limit_s: float) -> None:
        places = self.all(members, "starting", limit_s, Actor.check_in)
        for member, place in zip(members, places, strict=True):
            member.node, member.host, member.pid = place

    def is_of_trainers(self, error: SlimeError) -> bool:
        """Whether `error` says that a trainer rank has died, or hangs."""
        names = {name for member in self.trainers for name in (member.name, str(member))}
        return isinstance(error, Death | Hang) and error.where in names

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
        """Have every `wait` raise the failure of `calls` of processes that need each other, too, as long as they last;
        but for the death of an engine that starts again."""
        self._beside |= {ref: _Beside(member, what, calls) for ref, member in calls.items()}

    @property
    def num_beside(self) -> int:
        """Calls of `watch_beside` that last, as far as is known, and processes of engines that start again."""
        return len(self._beside) + len(self._left)

    def hosts_answer(self, what: str) -> bool:
        """True if every host takes connections. Raises SlimeError if one is lost, and with it more than trainers."""
        assert self._watch, "they have checked in"
        with self._watching:
            fault, answer = self._watch.lost_host(what, asks_ray=True), self._watch.hosts_answer()
        if fault and not self.is_of_trainers(fault):  # these start again anyway
            raise fault
        return answer

    def _lose(self, node: str, death: Death) -> Death | None:
        """See `HostReturn.lose`."""
        return self.replacing.lose(node, death, self._members, self._spare) if self.replacing else death

    def look_beside(self) -> None:
        """See which calls of `watch_beside` are answered, and how far the engines are that start again.

        Raises:
            SlimeError: one has failed.
        """
        while ref := self._answered_beside(0):
            self._take_beside(ref)
        with self._watching:
            if self.restarts:
                self.restarts.advance()

    def wait_beside(self, what: str, limit_s: float) -> None:
        """Wait until nothing of `num_beside` is left; raises as `wait`."""
        deadline = time.monotonic() + limit_s
        while self.num_beside:
            if ref := self._answered_beside(WATCH_S):
                self._take_beside(ref)
                continue
            self.look(what)
            pending = [each.member for each in self._beside.values()]
            if pending and time.monotonic() >= deadline:
                raise late(self._members, self.logs, pending, what, limit_s)
            if whom := [*(member.name for member in pending), *self._left]:
                self.tell(what, whom)

    def _answered_beside(self, timeout_s: float) -> Any:
        """Reference to a call that is answered by then; None: there is none."""
        import ray

        if self._beside:
            return next(iter(ray.wait(list(self._beside), timeout=timeout_s)[0]), None)
        time.sleep(timeout_s)
        return None

    def _take_beside(self, ref: Any) -> None:
        """Look at an answer, and have an engine that has died start again."""
        with self._watching:
            call = self._beside.pop(ref)
            try:
                self._get(ref, call.member, call.what)
            except SlimeError as error:
                # A process that ends by itself would do so again, unless it does so for the death of another.
                others = {other: member for other, member in call.calls.items() if other is not ref}
                death = error if isinstance(error, Death) else self._cause(others, call.what, Death)
                if not death or not self.restarts or not self.restarts.spare(call.member, death):
                    raise self._explained(death) if death else error from None

    def is_busy_beside(self, member: Member) -> bool:
        """Whether `member` still has a call of `watch_beside` to answer, as far as is known, or starts again."""
        return member.name in self._left or any(call.member is member for call in self._beside.values())

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
            ready, _ = ray.wait([*pending, *self._beside], num_returns=1, timeout=limit)
            if ready:
                (ref,) = ready
                if ref in self._beside:
                    self._take_beside(ref)
                    continue
                pending.remove(ref)
                try:
                    self._get(ref, calls[ref], what)
                except Consequence as error:
                    raise self._cause({other: calls[other] for other in pending}, what, SlimeError) or error from None
                continue
            self.look(what)
            if time.monotonic() >= deadline:
                raise late(self._members, self.logs, [calls[ref] for ref in pending], what, limit_s)
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
            self.cancelled = task
            task.cancel()
            await asyncio.wait([task], timeout=STOP_S)

    @property
    def _spare(self) -> Spare:
        return self.restarts.spare if self.restarts else spare_nobody

    def look(self, what: str) -> None:
        """See who has died, and how far the engines are that start again, while the run does `what`.

        Raises:
            SlimeError: naming a process that died, without which the run cannot go on.
        """
        with self._watching:
            if fault := self._watch.fault(what, self._spare) if self._watch else None:
                raise self._explained(fault)
            if self.replacing:
                self.replacing.advance()
            if self.restarts:
                self.restarts.advance()

    def unwatched(self) -> contextlib.AbstractContextManager[object]:
        """No engine is found dead, and none starts again, in the block."""
        return self._watching

    def look_closely(self, what: str) -> None:
        """`look`, which does not miss an engine that is about to end."""
        ends, gone = ends_of(self._up)
        with self._watching:
            fault = first_unspared(ends, self._spare)
            for member, error in gone:
                member.has_died = True
                if not self._spare(member, death := died(member, error, what, self.logs)):
                    fault = fault or death
            if fault:
                raise self._explained(fault)
        self.look(what)

    def leave(self, members: Sequence[Member]) -> None:
        """Look after `members` no more, until they `join`."""
        assert self._watch, "they have checked in"
        self._watch.leave(members)
        names = {member.name for member in members}
        self._left |= names
        self._beside = {ref: call for ref, call in self._beside.items() if call.member.name not in names}

    def join(self, members: Sequence[Member]) -> None:
        assert self._watch, "they have checked in"
        self._watch.join(members)
        self._left &= {each.name for each in self._members} - {member.name for member in members}

    @contextlib.contextmanager
    def naming_causes(self) -> Iterator[None]:
        """Replace an error by the one of the process that died or hangs, if that caused it."""
        try:
            yield
        except Death:
            raise
        except Exception as error:
            if not isinstance(error, SlimeError):  # one rank fails for the end of another before Ray tells of that
                time.sleep(WATCH_S)
            cause = self._dead() or (hanging(self._members, self.logs, error) if isinstance(error, NoAnswer) else None)
            if cause is None:
                raise
            raise cause from error

    def _dead(self) -> Death | None:
        """A process of the run that has ended: Ray's, actors, and then the engines' servers."""
        if not (fault := self._fault(_ASKING)):
            ends, gone = ends_of(self._up)
            # Ray may have failed this question before the one that the watch has asked.
            actors = (died(member, error, _ASKING, self.logs) for member, error in gone)
            fault = first_end(end for _, end in ends) or self._fault(_ASKING) or next(actors, None)
        return fault and self._explained(fault)

    def _explained(self, fault: Death) -> Death:
        """With why an engine that has died is not started again."""
        if not self.restarts or not self.restarts.why_not or not fault.where.startswith(ENGINE):
            return fault
        return Death(fault.what, where=fault.where, todo=f"{fault.todo} {self.restarts.why_not}")

    @property
    def _up(self) -> list[Member]:
        """Engines; one that is still starting does not answer before it is up, and if it fails, that call tells."""
        return [engine for engine in self.engines if not self.is_busy_beside(engine)]

    def _fault(self, what: str) -> Death | None:
        with self._watching:
            return self._watch.fault(what) if self._watch else None

    def _cause(self, calls: Mapping[Any, Member], what: str, kind: type[E]) -> E | None:
        """The first failure that is not of another, of calls that have begun to fail."""
        import ray

        answered, _ = ray.wait(list(calls), num_returns=len(calls), timeout=CAUSE_S) if calls else ([], [])
        for ref in answered:
            try:
                self._get(ref, calls[ref], what)
            except SlimeError as error:
                if isinstance(error, kind) and not isinstance(error, Consequence):
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
            member.has_died = True
            raise self._fault(what) or died(member, error, what, self.logs) from error

    @property
    def _members(self) -> list[Member]:
        return [*self.trainers, *self.engines]
