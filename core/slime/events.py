"""What a run tells while it lasts: typed events, and the bus that brings each one to every subscriber.

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


@dataclass(frozen=True)
class Starting:
    """A part of the start begins; `what` is a line for the user, empty for none. Comes again after `Ready` if the run
    has to wait for engines that started beside supervised steps."""

    what: str = ""


@dataclass(frozen=True)
class Waiting:
    """A call to several processes still lasts.

    Attributes:
        what: the call lasts for, such as `starting engines`.
        whom: names of the processes that have not answered.
        logs: folder with `<name>.log` of each process; None: they have no log.
    """

    what: str
    whom: Sequence[str]
    logs: Path | None = None


@dataclass(frozen=True)
class Ready:
    """The start is over; `what` is a line for the user, empty for none."""

    what: str = ""


@dataclass(frozen=True)
class Restored:
    """Trainers hold their weights. `position` is the (stage, step) that the run continues after; None: a new run."""

    position: tuple[str, int] | None


@dataclass(frozen=True)
class StageBegan:
    """Stage `stage` (`sft`, `rl`, or `eval` in `slime eval`) begins: `done` of its `total` steps were run before."""

    stage: str
    total: int
    done: int = 0


@dataclass(frozen=True)
class StageEnded:
    """The stage that began last is over, also if an error ended it."""


@dataclass(frozen=True)
class Phase:
    """What the running step does: `generate`, `train`, `publish`, `evaluate`.

    Attributes:
        done: of `total` parts, such as groups of samples; None: the phase is not counted.
    """

    name: str
    done: int | None = None
    total: int | None = None


@dataclass(frozen=True)
class EngineLost:
    """An engine has died, and starts again.

    Attributes:
        engine: its name, such as `engine-1`.
        why: what `SlimeError` says of its end.
        restart: the number of this start among those of `rollout.restart_window_s`.
        of: `rollout.restarts`.
    """

    engine: str
    why: str
    restart: int
    of: int


@dataclass(frozen=True)
class EngineBack:
    """An engine that had died takes requests again.

    Attributes:
        seconds: since its death was seen.
        is_new: it had died as it started, and has no weights yet.
    """

    engine: str
    seconds: float
    is_new: bool = False


@dataclass(frozen=True)
class Samples:
    """The samples of a step are generated and rewarded.

    Attributes:
        step: that trains on them.
        groups: that it trains on.
        judged: every group that finished, with the filter's decision.
    """

    step: int
    groups: Sequence[Group]
    judged: Sequence[tuple[Group, Decision]]


@dataclass(frozen=True)
class SampleRows:
    """Samples that are kept, as trackers show them; whoever keeps them publishes this.

    Attributes:
        tables: name, such as `rollout/samples` -> rows.
    """

    tables: Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Evaluation:
    """The held-out prompts are scored.

    Attributes:
        step: the weights' version.
        groups: of samples, one a prompt.
        values: metrics by name.
    """

    step: int
    groups: Sequence[Group]
    values: Mapping[str, float]


@dataclass(frozen=True)
class Step:
    """The metrics of a step. metrics.jsonl has them before any other subscriber sees them, and before the checkpoint.

    Attributes:
        complete: False for step 0, which is an evaluation alone, and for a step that an alarm ends.
        time: Unix seconds.
    """

    stage: str
    step: int
    values: Mapping[str, float]
    complete: bool = True
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Complete:
    """Every step is done and the model is exported. A subscriber writes its files now: a summary at `Ended` names
    them."""


@dataclass(frozen=True)
class Ended:
    """The last event. Subscribers get it in reverse order of their subscription.

    Attributes:
        error: what ended the run, None if it finished.
    """

    status: RunStatus
    error: BaseException | None = None


Event = (
    Starting
    | Waiting
    | Ready
    | Restored
    | StageBegan
    | StageEnded
    | Phase
    | EngineLost
    | EngineBack
    | Samples
    | SampleRows
    | Evaluation
    | Step
    | Complete
    | Ended
)
Subscriber = Callable[[Event], None]


class Events:
    """The bus of a run. Every event is handled when `publish` returns, in the thread that published it; two threads do
    not publish at once.

    Attributes:
        problem: why the run stops after the step that it is in, with a checkpoint; None: it does not.
    """

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers, self._lock = list(subscribers), threading.RLock()
        self.problem: Exception | None = None

    def subscribe(self, *subscribers: Subscriber, first: bool = False) -> None:
        """Tell `subscribers` of every event from now on, after (`first`: before) those who subscribed before them."""
        self._subscribers[:] = [*subscribers, *self._subscribers] if first else [*self._subscribers, *subscribers]

    def publish(self, event: Event) -> None:
        """Tell every subscriber. What one of slime's own raises (a full disk) goes to the caller, and ends the run; the
        subscribers of plugins raise nothing (`slime.observe.subscribers`)."""
        with self._lock:
            for subscriber in tuple(self._subscribers):
                subscriber(event)

    def stop(self, why: Exception) -> bool:
        """Have the run stop after this step; of several reasons the first counts. False: it was to stop already."""
        if self.problem:
            return False
        self.problem = why
        return True

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        """Publish a `Phase`."""
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
