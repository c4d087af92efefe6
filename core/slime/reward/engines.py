"""Engines for rewards and objectives: those with models of their own (`rollout.engines.NAME.model`).

The driver knows where they answer, also after one was started again, and tells a worker with each sample. Objectives
make columns in the driver, and ask there (`asking`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from slime.errors import SlimeError, did_you_mean
from slime.net import Endpoint


@dataclass(frozen=True)
class FrozenEngine(Endpoint):
    """The address of an engine with a model of its own."""

    model: str = ""  # its HF folder, on the host of the reward


Addresses = Mapping[str, Sequence[FrozenEngine]]
"""By group, the engines that are up; at least one of each."""
POLL_S = 0.1
NOTICE_S = 20.0
"""The most between the death of an engine and its notice: each is asked every second."""
_told: Addresses = {}
_of_driver: FrozenEngines | None = None
T = TypeVar("T")


def engines(group: str) -> Sequence[FrozenEngine]:
    """The engines of a group, for a reward while it scores: OpenAI's API at `url` + "/v1", and SGLang's own beside it.
    Requests carry `headers`, and go past a proxy. SlimeError if the run has no such group."""
    if group not in _told:
        what = f"no engine group '{group}' with a model of its own was started for this reward"
        raise SlimeError(what, where=f"rollout.engines.{group}", todo=did_you_mean(group, _told))
    return _told[group]


def tell(addresses: Addresses) -> None:
    """In a worker, before it scores."""
    global _told
    _told = addresses


def asking(group: str, work: Callable[[Sequence[FrozenEngine]], T]) -> T:
    """The result of `work` with a group's engines, for an objective in the driver, beside its event loop; once more if
    one of them died meanwhile, as soon as the group has one that answers. Raises SlimeError if the run has no such
    group, or what `work` raises."""
    found = _of_driver.groups if _of_driver else ()
    if _of_driver is None or group not in found:
        what = f"no engine group '{group}' with a model of its own was started"
        raise SlimeError(what, where=f"rollout.engines.{group}", todo=did_you_mean(group, found))
    while True:
        engines, num_lost = asyncio.run(_of_driver.up())[group], _of_driver.num_lost
        try:
            return work(engines)
        except SlimeError:
            if not asyncio.run(_of_driver.any_lost(num_lost)):
                raise


@contextmanager
def known_to_driver(frozen: FrozenEngines) -> Iterator[None]:
    """In the driver, while its run is open."""
    global _of_driver
    _of_driver = frozen
    try:
        yield
    finally:
        _of_driver = None


class FrozenEngines:
    """The addresses of a run's frozen engines, kept by the driver in whichever thread, from the group of each engine
    and the folder of each group's model."""

    def __init__(self, groups: Sequence[str] = (), models: Mapping[str, str] | None = None) -> None:
        self.groups, self._models = groups, models or {}
        self.endpoints: list[FrozenEngine | None] = [None] * len(groups)  # None: it does not answer now
        self.num_lost = 0  # engines that died so far

    def found(self, number: int, endpoint: Endpoint) -> None:
        """An engine answers, there."""
        model = self._models.get(self.groups[number], "")
        self.endpoints[number] = FrozenEngine(endpoint.url, endpoint.key, model)

    def lost(self, number: int) -> None:
        """An engine has died, and is started again."""
        self.endpoints[number] = None
        self.num_lost += 1

    async def any_lost(self, num_lost: int) -> bool:
        """Whether more than `num_lost` engines have died. A request fails some seconds before the death of its engine
        is known, so this waits while an engine does not listen."""
        for _ in range(int(NOTICE_S / POLL_S)):
            if self.num_lost > num_lost:
                return True
            if all(await asyncio.gather(*(_listens(endpoint) for endpoint in self.endpoints if endpoint))):
                return False
            await asyncio.sleep(POLL_S)
        return False

    async def up(self) -> Addresses:
        """The addresses, once every group has an engine that answers."""
        while True:
            at = [*zip(self.groups, self.endpoints, strict=True)]
            known = {group: [each for of, each in at if each and of == group] for group in self.groups}
            if all(known.values()):
                return known
            await asyncio.sleep(POLL_S)


async def _listens(endpoint: Endpoint) -> bool:
    at = urlsplit(endpoint.url)
    try:
        _, writer = await asyncio.open_connection(at.hostname, at.port)
    except OSError:
        return False
    writer.close()
    return True
