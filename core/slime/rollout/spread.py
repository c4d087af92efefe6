"""Requests to several engines: where each of them goes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from slime.rollout.client import EngineGone
from slime.rollout.generate import Engine, Front, Generation
from slime.topology.server_fields import MAX_IMBALANCE

log = logging.getLogger(__name__)

REST_S = 60.0
"""An engine that was gone gets no request for so long, unless all are gone."""


def front(engines: Sequence[Engine]) -> Front:
    """What takes the requests to `engines`: the only one itself."""
    return engines[0] if len(engines) == 1 else Spread(engines)


class Spread:
    """Gives each request to the engine with the fewest, and the samples of a prompt to one engine.

    A request that begins as the one before it did follows it to its engine, whose prefix cache may know the beginning
    by now, unless that one would have over `MAX_IMBALANCE` requests more than another. Requests that are made at one
    moment reach an engine in one message (`slime.rollout.together`).

    Where an engine is gone, others take its requests, from the beginning; which tokens a sample gets does not depend on
    where it is generated, if the engines run deterministically.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.url = ", ".join(engine.url for engine in engines)
        self._engines = engines
        self._num_open = [0] * len(engines)
        self._rests_until = [0.0] * len(engines)
        self._last: tuple[int, Sequence[int]] = (0, [])

    async def generate(self, input_ids: Sequence[int], sampling: Mapping[str, Any], /) -> Generation:
        """As `EngineClient.generate`.

        Raises:
            SlimeError: also if every engine is gone.
        """
        gone: set[int] = set()
        while True:
            number = self._choose(input_ids, gone)
            self._num_open[number] += 1
            try:
                return await self._engines[number].generate(input_ids, sampling)
            except EngineGone as error:
                gone.add(number)
                if len(gone) == len(self._engines):
                    raise
                self._rest(number, error)
            finally:
                self._num_open[number] -= 1

    def _rest(self, number: int, error: EngineGone) -> None:
        """Said once: every request that the engine had comes here."""
        now = asyncio.get_running_loop().time()
        if self._rests_until[number] <= now:
            log.warning("%s Others take its requests for %g s.", error, REST_S)
        self._rests_until[number] = now + REST_S

    def _choose(self, input_ids: Sequence[int], gone: Collection[int]) -> int:
        now = asyncio.get_running_loop().time()
        left = [number for number in range(len(self._engines)) if number not in gone]
        awake = [number for number in left if self._rests_until[number] <= now] or left
        chosen = min(awake, key=self._num_open.__getitem__)
        before, beginning = self._last
        half = -(-len(input_ids) // 2)
        excess = self._num_open[before] - self._num_open[chosen]
        if before in awake and excess < MAX_IMBALANCE and input_ids[:half] == beginning[:half]:
            chosen = before
        self._last = (chosen, input_ids)
        return chosen
