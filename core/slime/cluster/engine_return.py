"""Engines that have died: what the run does about them, and what a plugin for it implements (hook
`slime_engine_returns`). Without one, the first death ends the run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from slime import plugins
from slime.cluster.calls import Calls
from slime.cluster.engines import Engines
from slime.cluster.watch import Restarting
from slime.engine_client.client import EngineClient
from slime.engine_client.engine_set import EngineSet
from slime.events import Event
from slime.net import Endpoint
from slime.topology.topology import Topology

T = TypeVar("T")


class Publishes(Protocol):
    """The training side, which has the weights."""

    def make_room(self) -> None:
        """Before a publish: let engines start again that wait for devices that they share with trainers."""

    def publish(self, engines: Sequence[Endpoint | None], version: int) -> dict[str, float]:
        """Hand the weights to these engines (None: to one that is not up) as `version`; returns metrics."""

    def publish_again(self, engines: Sequence[Endpoint | None]) -> bool:
        """Hand what was published last to these engines. False: the trainers have other weights by now.
        Where trainers take turns with engines, no engine may generate."""


class Returning(Protocol):
    """Engines of one run that were up, of which some may have died."""

    def publish(self, version: int) -> dict[str, float]:
        """Hand the weights to every engine that is up; returns metrics.

        Raises:
            SlimeError: an engine refused them, or died and does not come back.
        """

    async def beside(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which asks engines; those that died come back meanwhile."""

    def metrics(self) -> dict[str, float]:
        """Metrics of what has happened since this was asked last."""


class EngineReturn(Protocol):
    """A way for the engines of one run to come back. `slime-sglang` is the one of this repository."""

    def may_return(self, topology: Topology) -> bool:
        """Whether engines of such a run come back, so that requests wait for one that is lost."""

    def begin(
        self, topology: Topology, calls: Calls, processes: Engines, tell: Callable[[Event], None]
    ) -> Restarting | None:
        """Before engines start: who starts those again that die, also as they start. None: each death ends the run.
        `tell` is told of each death and return."""

    def returning(self, clients: Sequence[EngineClient], engines: EngineSet, learner: Publishes) -> Returning:
        """Once all engines are up, which `engines` has as the sampler knows them. Those outside the run have no
        `clients` yet: who returns brings them into `engines`."""


class EndsTheRun:
    """The `EngineReturn` and `Returning` without a plugin."""

    def may_return(self, topology: Topology) -> bool:
        return False

    def begin(self, topology: Topology, calls: Calls, processes: Engines, tell: Callable[[Event], None]) -> None:
        self._processes = processes

    def returning(self, clients: Sequence[EngineClient], engines: EngineSet, learner: Publishes) -> Returning:
        self._learner = learner
        return self

    def publish(self, version: int) -> dict[str, float]:
        return self._learner.publish(self._processes.endpoints, version)

    async def beside(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    def metrics(self) -> dict[str, float]:
        return {}


def engine_return() -> EngineReturn:
    return plugins.load().registries["engine_return"].only() or EndsTheRun()
