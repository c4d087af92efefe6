"""The engines of a run as one: which of them a request goes to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from slime.engine_client.client import NO_COMPLETION, Completion, Engine, EngineGone, ServerFault
from slime.errors import SlimeError
from slime.observe.spans import span
from slime.topology.engines import MAX_IMBALANCE

T = TypeVar("T")
log = logging.getLogger(__name__)

REST_S = 60.0
"""An engine that was gone gets no request for this long, unless all are gone."""
AGAIN_S = 1.0
"""How long it takes until a gone engine is asked again, where nothing but to wait is left."""


class _Member:
    """An engine, its open requests, and the time of the event loop's clock until which it gets no more of them. One
    that is lost has died, and comes back; `num_lost`: how often it has died."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.num_open, self.rests_until = engine, 0, 0.0
        self.is_lost, self.num_lost = False, 0
        self._busy_s, self._busy_since = 0.0, 0.0

    def begin(self) -> None:
        """Count a request that goes to the engine."""
        if not self.num_open:
            self._busy_since = _now()
        self.num_open += 1

    def end(self) -> None:
        """Count one that is answered, or given up."""
        self.num_open -= 1
        if not self.num_open:
            self._busy_s += _now() - self._busy_since

    @property
    def busy_s(self) -> float:
        """Seconds with open requests, so far."""
        return self._busy_s + (_now() - self._busy_since if self.num_open else 0.0)


class EngineSet:
    """Gives each request to the engine with the fewest, and the samples of a prompt to one engine. Engines may come
    and go.

    A request that begins as the one before it did follows it to its engine, whose prefix cache may know the beginning
    by now, unless that one would have over `MAX_IMBALANCE` requests more than another. Requests that are made at one
    moment reach an engine in one message (`slime_sglang.engine.driver.batched_requests`).

    Where an engine is gone, others take its requests, from the beginning; which tokens a sample gets does not depend on
    where it is generated, if the engines run deterministically. Where no other is left, requests wait until an engine
    comes back.

    Args:
        notice_s: how long it may take from the death of an engine until `lose` is called; 0: nobody calls it, and what
            finds no engine fails at once.
    """

    def __init__(self, engines: Iterable[Engine], notice_s: float = 0.0) -> None:
        self._members, self._notice_s = [_Member(engine) for engine in engines], notice_s
        self._last: tuple[_Member | None, Sequence[int]] = (None, [])
        self._num_aborts = 0
        self._idle_since: float | None = None
        self._busy_then: dict[Engine, float] = {}

    def __iter__(self) -> Iterator[Engine]:
        return (member.engine for member in self._members)

    def add(self, engine: Engine) -> None:
        """Let `engine` take requests from now on."""
        self._members.append(_Member(engine))

    def remove(self, engine: Engine) -> None:
        """Give `engine` no more requests; it still answers those that it has."""
        self._members = [member for member in self._members if member.engine is not engine]

    def lose(self, engine: Engine) -> None:
        """Ask nothing of `engine`, which has died, until it comes back."""
        member = self._member(engine)
        member.num_lost += not member.is_lost
        member.is_lost = True

    def regain(self, engine: Engine) -> None:
        """Let `engine`, which has come back, take requests."""
        member = self._member(engine)
        member.is_lost, member.rests_until = False, 0.0

    def _member(self, engine: Engine) -> _Member:
        return next(member for member in self._members if member.engine is engine)

    @property
    def has_lost(self) -> bool:
        """Whether an engine has died and is not back yet."""
        return any(member.is_lost for member in self._members)

    @property
    def serves(self) -> bool:
        """Whether an engine takes requests."""
        return not all(member.is_lost for member in self._members)

    @property
    def url(self) -> str:
        """The URLs of all engines, for errors."""
        return ", ".join(engine.url for engine in self)

    @property
    def num_generating(self) -> int:
        """Engines that decode, lost ones too."""
        return sum(engine.num_generating for engine in self)

    async def generate(self, input_ids: Sequence[int], sampling: Mapping[str, Any], /, **fields: Any) -> Completion:
        """Do as `EngineClient.generate`.

        Raises:
            SlimeError: also if every engine is gone, and none comes back.
        """
        gone: set[_Member] = set()
        num_aborts = self._num_aborts
        self._idle_since = _now() if self._idle_since is None else self._idle_since
        while True:
            member = self._choose(input_ids, gone)
            if member is None:
                await asyncio.sleep(AGAIN_S)
                if self._num_aborts > num_aborts:
                    return NO_COMPLETION
                gone.clear()
                continue
            num_lost = member.num_lost
            member.begin()
            try:
                with span("request", member.engine.url, tokens=len(input_ids)):
                    return await member.engine.generate(input_ids, sampling, **fields)
            except (EngineGone, ServerFault) as error:
                if not await self._is_dead(member, num_lost, error, gone):
                    raise
                gone.add(member)
            finally:
                member.end()

    async def _is_dead(self, member: _Member, num_lost: int, error: SlimeError, gone: set[_Member]) -> bool:
        """Whether others, or itself once it is back, are to be asked what `member` answered with `error`. It had been
        lost `num_lost` times when it was asked."""
        others = [other for other in self._members if other is not member and not other.is_lost]
        if isinstance(error, EngineGone) and not gone.issuperset(others):
            self._rest(member, error)
            return True
        return await self._is_lost_soon(member, num_lost)

    def _rest(self, member: _Member, error: SlimeError) -> None:
        """Said once, for every request that the engine had comes here; not at all of one that is found to have died."""
        now, num_lost = _now(), member.num_lost

        def tell() -> None:
            if member.num_lost == num_lost:
                log.warning("%s Others take its requests for %g s.", error, REST_S)

        if member.rests_until <= now:
            asyncio.get_running_loop().call_later(self._notice_s, tell) if self._notice_s else tell()
        member.rests_until = now + REST_S

    async def _is_lost_soon(self, member: _Member, num_lost: int) -> bool:
        """Whether `member`, which did not answer as it should, is found to have died since it was asked, also if it is
        back by then."""
        deadline = _now() + self._notice_s
        while member.num_lost == num_lost and _now() < deadline:
            await asyncio.sleep(AGAIN_S)
        return member.num_lost > num_lost

    async def abort_all(self) -> None:
        """End every request at every engine now; each answers with what it had."""
        self._num_aborts += 1
        await self.each(lambda engine: engine.abort_all())

    async def flush_cache(self) -> None:
        """Wait until every engine is idle, then have each forget its prefix cache."""
        await self.each(lambda engine: engine.flush_cache())

    async def loads(self) -> dict[Engine, tuple[int, int]]:
        """The loads of each engine that is not lost: requests that run or wait, and tokens in the pool that they
        use."""
        return await self.each(lambda engine: engine.load())

    async def each(self, ask: Callable[[Engine], Coroutine[Any, Any, T]]) -> dict[Engine, T]:
        """Answers of all engines but those that are lost, or die of it."""
        asked = [member for member in self._members if not member.is_lost]
        answers = await asyncio.gather(*(self._ask(member, ask) for member in asked))
        return {member.engine: found[0] for member, found in zip(asked, answers, strict=True) if found}

    async def _ask(self, member: _Member, ask: Callable[[Engine], Coroutine[Any, Any, T]]) -> list[T]:
        num_lost = member.num_lost
        try:
            return [await ask(member.engine)]
        except (EngineGone, ServerFault):
            if not await self._is_lost_soon(member, num_lost):
                raise
            return []

    def busy_seconds(self) -> dict[Engine, float]:
        """Seconds that each engine has had requests so far."""
        return {member.engine: member.busy_s for member in self._members}

    def idle_share(self) -> float:
        """The share of the time in which an engine had no request, as the mean over engines: since this was asked for
        last, or else since the first request; 1 if no time has passed."""
        now, busy_s = _now(), self.busy_seconds()
        since, then = self._idle_since, self._busy_then
        self._idle_since, self._busy_then = now, busy_s
        if since is None or not (possible_s := len(busy_s) * (now - since)):
            return 1.0
        found_s = sum(seconds - then.get(engine, 0.0) for engine, seconds in busy_s.items())
        return max(0.0, 1.0 - found_s / possible_s)  # each engine's clock is read a moment later than `now`

    def _choose(self, input_ids: Sequence[int], gone: set[_Member]) -> _Member | None:
        """The engine for a request; None: no one that lives is left."""
        now = _now()
        left = [member for member in self._members if not member.is_lost and member not in gone]
        if len(left) < 2:
            return left[0] if left else None
        awake = [member for member in left if member.rests_until <= now] or left
        chosen = min(awake, key=lambda member: member.num_open)
        before, beginning = self._last
        half = -(-len(input_ids) // 2)
        if (
            before in awake
            and before.num_open - chosen.num_open < MAX_IMBALANCE
            and input_ids[:half] == beginning[:half]
        ):
            chosen = before
        self._last = (chosen, input_ids)
        return chosen


def _now() -> float:
    return asyncio.get_running_loop().time()
