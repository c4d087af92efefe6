"""Engines that died come back: what the driver does about them, while it generates and when it publishes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from slime.cluster.calls import Calls
from slime.cluster.engine_return import Publishes
from slime.cluster.engines import Engines
from slime.cluster.watch import WATCH_S
from slime.engine_client.client import EngineClient
from slime.engine_client.engine_set import EngineSet
from slime.errors import Death, SlimeError
from slime.events import Event
from slime.net import Endpoint
from slime.topology.topology import Topology
from slime.topology.transport import BROADCAST
from slime_sglang.returning.outside import OutsideEngines, tended
from slime_sglang.returning.restarts import Restarts, may_return

T = TypeVar("T")
PUBLISHING = "publishing"


class Returning:
    """Brings engines back that died: `Restarts` starts them, here they get weights and requests.

    Args:
        clients: of every engine.
        engines: the same, as the sampler knows them; those that work in pairs are one there.
        learner: hands weights over.
        can_repeat: a publish in which an engine died may be begun again for the others.
        by_turns: trainers, who hand weights over, and engines that generate take turns on the same devices.
    """

    def __init__(
        self,
        calls: Calls,
        restarts: Restarts,
        clients: Sequence[EngineClient],
        engines: EngineSet,
        learner: Publishes,
        *,
        can_repeat: bool,
        by_turns: bool,
    ) -> None:
        self._restarts = restarts
        self._calls, self._clients, self._engines = calls, clients, engines
        known = [*engines]
        self._known = known if len(known) == len(clients) else known * len(clients)
        self._learner, self._can_repeat, self._by_turns = learner, can_repeat, by_turns
        self._told = (0, 0.0)

    def publish(self, version: int) -> dict[str, float]:
        """Hand the weights to every engine that is up, and to one at least; returns metrics. Engines that die
        meanwhile, or are not up yet, get them when they are.

        Raises:
            SlimeError: an engine refused them, or died and does not start again.
        """
        while True:
            endpoints = self._reachable()
            num_begun = self._restarts.num_begun
            try:
                metrics = self._learner.publish(endpoints, version)
            except Death:
                raise
            except SlimeError:
                if not self._can_repeat:
                    raise
                self._calls.look_closely(PUBLISHING)
                if self._restarts.num_begun == num_begun:
                    raise
            else:
                self._serve(endpoints)
                return metrics

    async def beside(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which asks engines; those that died come back meanwhile."""
        return await tended(work, self._tend())

    def metrics(self) -> dict[str, float]:
        """Restarts, and the seconds that they took, since this was asked last; none if there were none."""
        before, self._told = self._told, (self._restarts.num_begun, self._restarts.seconds)
        count, seconds = self._told[0] - before[0], self._told[1] - before[1]
        return {"engines/restarts": float(count), "engines/seconds_lost": seconds} if count or seconds else {}

    async def _tend(self) -> None:
        while True:
            self._lose()
            if self._restarts.empty() and (not self._by_turns or self._are_idle()):
                handing_over = asyncio.ensure_future(asyncio.to_thread(self._hand_over))
                try:
                    await asyncio.shield(handing_over)
                finally:
                    await asyncio.wait([handing_over])  # the trainers are in it until then
                    if not handing_over.cancelled() and not handing_over.exception():
                        self._serve(handing_over.result())
            await asyncio.sleep(WATCH_S)

    def _are_idle(self) -> bool:
        """Whether no engine takes requests, and all that died are up."""
        return not self._engines.serves and self._restarts.empty() == self._restarts.lost()

    def _hand_over(self) -> list[Endpoint | None]:
        """Publish to the engines that are up without weights; returns those that have them now."""
        empty, num_begun = self._restarts.empty(), self._restarts.num_begun
        endpoints = [at if index in empty else None for index, at in enumerate(self._restarts.reachable())]
        try:
            if self._learner.publish_again(endpoints):
                return endpoints
        except Death:
            raise
        except SlimeError:
            self._calls.look_closely(PUBLISHING)
            if self._restarts.num_begun == num_begun:
                raise
        return []

    def _serve(self, endpoints: Sequence[Endpoint | None]) -> None:
        """Let engines that have got weights at these addresses take requests."""
        self._lose()
        for index, (client, endpoint) in enumerate(zip(self._clients, endpoints, strict=False)):
            if endpoint and self._restarts.has_weights(index, endpoint):
                client.move(endpoint)
                if not any(self._known[lost] is self._known[index] for lost in self._restarts.lost()):
                    self._engines.regain(self._known[index])

    def _lose(self) -> None:
        for index in self._restarts.lost():
            self._engines.lose(self._known[index])

    def _reachable(self) -> list[Endpoint | None]:
        """Of every engine that is up its endpoint, once one is."""
        while True:
            self._learner.make_room()
            self._calls.look(PUBLISHING)
            self._lose()  # requests of samples that were begun ahead wait for the engine, if they know
            if any(endpoints := self._restarts.reachable()):
                return endpoints
            time.sleep(WATCH_S)


class Restart:
    """A `slime.cluster.engine_return.EngineReturn`."""

    def may_return(self, topology: Topology) -> bool:
        return may_return(topology) or bool(topology.outside)

    def begin(self, topology: Topology, calls: Calls, processes: Engines, tell: Callable[[Event], None]) -> Restarts:
        self._calls, self._restarts = calls, Restarts(topology, calls, processes, tell)
        self._can_repeat = topology.transport != BROADCAST or not topology.cluster.on_gpus
        self._by_turns = topology.takes_turns
        self._outside = OutsideEngines(topology.config, tell) if topology.outside else None
        return self._restarts

    def returning(
        self, clients: Sequence[EngineClient], engines: EngineSet, learner: Publishes
    ) -> Returning | OutsideEngines:
        if self._outside:
            self._outside.join(engines, learner)
            return self._outside
        how = {"can_repeat": self._can_repeat, "by_turns": self._by_turns}
        return Returning(self._calls, self._restarts, clients, engines, learner, **how)
