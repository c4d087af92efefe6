"""Trainers that died or hang: all ranks start again inside the run, which returns to its newest checkpoint, or to a
newer copy in host memory. Engines stay."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from slime.cluster.calls import Calls
from slime.cluster.host_return import have_hosts
from slime.errors import SlimeError
from slime.events import Events, Ready, Restored, Starting, TrainersLost
from slime.generation import StartingEngines
from slime.learner import Learner
from slime.observe.step_log import StepLog
from slime.run_dir import step_of
from slime.topology.topology import Topology
from slime.topology.transport import BROADCAST

T = TypeVar("T")


class Budget:
    """Of restarts, `most` within `window_s` seconds. A death counts longer where the run has not passed its step: it
    may be what that step does."""

    def __init__(self, most: int, window_s: float) -> None:
        self._most, self._window_s = most, window_s
        self._deaths: list[tuple[float, int]] = []

    def spend(self, now: float, num_done: int) -> int:
        """Number of the restart after a death that is seen `now`, in seconds, when `num_done` steps were done; 0: there
        is none."""
        self._deaths = [(at, done) for at, done in self._deaths if now - at <= self._window_s or done >= num_done]
        if len(self._deaths) >= self._most:
            return 0
        self._deaths.append((now, num_done))
        return len(self._deaths)


class TrainerReturn:
    """Starts the trainers of one run again, under the budget of `train.restarts`.

    Args:
        engines: drop what they were asked for; None: nothing is generated.
        log: gets `trainers/restarts` and `trainers/seconds_lost`.
    """

    def __init__(
        self,
        topology: Topology,
        calls: Calls,
        learner: Learner,
        engines: StartingEngines | None,
        events: Events,
        log: StepLog,
    ) -> None:
        self._topology, self._calls, self._learner, self._engines = topology, calls, learner, engines
        self._events, self._log = events, log
        train = topology.config.train
        self._budget, self._seen = Budget(train.restarts, train.restart_window_s), 0.0

    def survive(self, work: Callable[[], T]) -> T:
        """The result of `work`, which goes on from the learner's position: it is called again each time that trainers
        have come back.

        Raises:
            SlimeError: what `work` raises, and the death of a trainer rank after which none starts again.
        """
        lost: SlimeError | None = None
        while True:
            try:
                with self._calls.naming_causes():
                    if lost:
                        self._begin_again(lost)
                    return work()
            except SlimeError as error:
                self._spend(error)
                lost = error

    def _spend(self, error: SlimeError) -> None:
        """Count a death; raises `error` if it is no trainer's, or none starts again."""
        cfg = self._topology.config
        if not self._calls.is_of_trainers(error) or not cfg.train.restarts:
            raise error
        if why_not := self._why_not():
            raise type(error)(error.what, where=error.where, todo=f"{error.todo} {why_not}")
        self._seen = time.monotonic()
        if not (restart := self._budget.spend(self._seen, self._learner.position.total)):
            raise error
        newest = self._learner.newest
        why, num_ranks = f"{error.where}: {error.what}", len(self._calls.trainers)
        after = "" if newest is None else step_of(newest, cfg.sft.num_steps)
        self._events.publish(TrainersLost(why, num_ranks, after, restart, cfg.train.restarts))

    def _why_not(self) -> str:
        """Why trainers do not start again now; empty: they do."""
        topology = self._topology
        if not have_hosts(self._calls.trainers, self._calls.replacing):
            return "Its host is gone, so trainers are not started again."
        if self._learner.is_publishing and topology.transport == BROADCAST and topology.cluster.on_gpus:
            return "Engines that wait for a broadcast by NCCL cannot be freed, so trainers are not started again."
        return ""

    def _begin_again(self, lost: SlimeError) -> None:
        learner = self._learner
        self._events.publish(Starting())
        learner.end(lost)
        if self._engines:
            self._engines.forget()
        learner.begin_again()
        learner.restore()
        self._events.publish(Restored(learner.position.stage if learner.resumed else None))
        seconds, after = time.monotonic() - self._seen, "begins again"
        if learner.resumed:
            after = f"continues after {step_of(learner.resumed.step, self._topology.config.sft.num_steps)}"
        self._log.late({"trainers/restarts": 1.0, "trainers/seconds_lost": seconds})
        self._events.publish(Ready(f"trainers are back, {seconds:.0f} s after their end: the run {after}"))
