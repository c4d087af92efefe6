"""Typed events of a run, and the bus that brings each one to every subscriber.

The loop publishes events and knows no subscriber. metrics.jsonl, status.json and the subscribers of plugins
(hook `slime_subscribers`: start-up lines, progress line, `samples/`, trackers) each take the events that they need.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime.errors import Stopped

if TYPE_CHECKING:
    from slime.types import Decision, Group, RunStatus


class Event:
    """One of the classes below."""


Subscriber = Callable[[Event], None]


@dataclass(frozen=True)
class Starting(Event):
    """A part of the start begins. Comes again after `Ready` if the run has to wait for engines that started beside
    supervised steps."""

    what: str = ""  # a line for the user, empty for none


@dataclass(frozen=True)
class Waiting(Event):
    """A call to several processes still lasts."""

    what: str  # the call lasts for, such as `starting engines`
    whom: Sequence[str]  # names of the processes that have not answered
    logs: Path | None = None  # folder with `<name>.log` of each process; None: they have no log


@dataclass(frozen=True)
class Ready(Event):
    """The start is over."""

    what: str = ""  # a line for the user, empty for none


@dataclass(frozen=True)
class Restored(Event):
    """Trainers hold their weights. Comes again where they were lost; steps after `position` run again then."""

    position: tuple[str, int] | None  # (stage, step) that the run continues after; None: from its beginning


@dataclass(frozen=True)
class StageBegan(Event):
    """Stage `stage` (`sft`, `rl`, or `eval` in `slime eval`) begins: `done` of its `total` steps were run before."""

    stage: str
    total: int
    done: int = 0


@dataclass(frozen=True)
class StageEnded(Event):
    """The stage that began last is over, also if an error ended it."""


@dataclass(frozen=True)
class Phase(Event):
    """A part of the running step begins or advances: `generate`, `train`, `publish`, `evaluate`."""

    name: str
    done: int | None = None  # of `total` parts, such as groups of samples; None: the phase is not counted
    total: int | None = None


@dataclass(frozen=True)
class EngineLost(Event):
    """An engine has died, and starts again; or one outside the run is left out, until it answers."""

    engine: str  # its name, such as `engine-1`, or the address of one outside the run
    why: str  # what `SlimeError` says of its end
    restart: int = 0  # number of this start among those of `rollout.restart_window_s`
    of: int = 0  # `rollout.restarts`; 0: nobody starts it again


@dataclass(frozen=True)
class EngineBack(Event):
    """An engine that had died takes requests again, or one outside the run does."""

    engine: str
    seconds: float | None  # since its death was seen; None: it takes its first requests
    is_new: bool = False  # it had died as it started, and has no weights yet
    url: str = ""


@dataclass(frozen=True)
class TrainersLost(Event):
    """A trainer rank has died, or hangs, and all of them start again. `Restored` comes once they hold weights."""

    why: str  # what `SlimeError` says of its end
    num_ranks: int
    after: str  # the newest checkpoint or copy, such as `rl 4`; empty: the run begins again
    restart: int  # number of this start among those of `train.restart_window_s`
    of: int  # `train.restarts`


@dataclass(frozen=True)
class Serving(Event):
    """Every engine takes requests."""

    urls: Mapping[str, str]  # name, such as `engine-0` -> address


@dataclass(frozen=True)
class Samples(Event):
    """The samples of a step are generated and rewarded, and trainers have begun with them, unless the step has failed
    before or samples of later steps are generated meanwhile."""

    step: int
    groups: Sequence[Group]  # that it trains on
    judged: Sequence[tuple[Group, Decision]]  # every group that finished, with the filter's decision


@dataclass(frozen=True)
class SampleRows(Event):
    """Samples that are kept, as trackers show them; whoever keeps them publishes this."""

    tables: Mapping[str, Sequence[Mapping[str, Any]]]  # name, such as `rollout/samples` -> rows


@dataclass(frozen=True)
class Evaluation(Event):
    """The held-out prompts are scored."""

    step: int  # the weights' version
    groups: Sequence[Group]  # of samples, one a prompt
    values: Mapping[str, float]  # metrics by name


@dataclass(frozen=True)
class Step(Event):
    """The metrics of a step. metrics.jsonl has them before other subscribers see them, and before the checkpoint."""

    stage: str
    step: int
    values: Mapping[str, float]
    complete: bool = True  # False: step 0, which is an evaluation alone, or a step that an alarm ends
    time: float = field(default_factory=time.time)  # Unix seconds


@dataclass(frozen=True)
class Complete(Event):
    """Every step is done and the model is exported. A subscriber writes its files now: a summary at `Ended` names
    them."""


@dataclass(frozen=True)
class Ended(Event):
    """The last event. Subscribers get it in reverse order of their subscription."""

    status: RunStatus
    error: BaseException | None = None  # what ended the run; None: it finished


class Events:
    """The bus of a run. Every event is handled when `publish` returns, in the thread that published it; two threads do
    not publish at once."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers, self._lock = list(subscribers), threading.RLock()
        self.problem: Exception | None = None  # why the run stops after its step, with a checkpoint; None: it goes on

    def subscribe(self, *subscribers: Subscriber, first: bool = False) -> None:
        """Tell `subscribers` of every event from now on, after (`first`: before) those who are there already."""
        self._subscribers[:] = [*subscribers, *self._subscribers] if first else [*self._subscribers, *subscribers]

    def publish(self, event: Event) -> None:
        """Tell every subscriber. What one of slime's own raises (a full disk) goes to the caller, and ends the run; the
        subscribers of plugins raise nothing (`slime.observe.subscribers`)."""
        with self._lock:
            for subscriber in tuple(self._subscribers):
                subscriber(event)

    def stop(self, why: Exception) -> None:
        """Have the run stop after this step; of several reasons the first counts."""
        self.problem = self.problem or why

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        self.publish(Phase(name, done, total))

    @contextmanager
    def stage(self, stage: str, total: int, done: int = 0) -> Iterator[None]:
        """Publish `StageBegan`, and `StageEnded` however the block ends."""
        self.publish(StageBegan(stage, total, done))
        try:
            yield
        finally:
            self.publish(StageEnded())

    @contextmanager
    def until_ended(self) -> Iterator[None]:
        """Publish `Ended` after the block, with the error that ended it."""
        try:
            yield
        except BaseException as error:
            asked = isinstance(error, (KeyboardInterrupt, Stopped))
            self._end(Ended("interrupted" if asked else "failed", error))
            raise
        self._end(Ended("finished"))

    def _end(self, event: Ended) -> None:
        # As resources are closed: who came last, closes first, so that status.json is the last to change.
        for subscriber in reversed(self._subscribers):
            subscriber(event)
