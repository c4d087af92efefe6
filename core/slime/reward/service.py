"""Scores samples in worker processes: a reward may raise, hang, crash or eat memory, and costs one verdict."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO

from slime.config.schema import RewardConfig
from slime.errors import SlimeError
from slime.reward.process import LostWorkerError, WorkerProcess
from slime.reward.worker import Setup
from slime.types import Sample, Verdict

_CLOSED = Verdict.error("the reward service was closed")


class RewardService:
    """`cfg.num_workers` workers, each with its own reward object; a sample occupies one of them.

    A worker that exceeds `cfg.timeout_s` or dies is replaced, with everything it started killed. Samples are served
    in the order they came; a slow one delays only those that need its worker. May be used from one event loop after
    another, but not from two at the same time.

    Args:
        cfg: which reward, and its limits.
        log: file that gets what rewards print and the stacks of their exceptions; None discards it.
    """

    def __init__(self, cfg: RewardConfig, log: Path | None = None) -> None:
        assert cfg.num_workers > 0, "compose() refuses a service without workers"
        self._cfg, self._log_path = cfg, log
        self._setup = Setup(cfg.name, cfg.options, cfg.memory_mb)
        self._log: IO[bytes] | None = None
        self._idle: deque[WorkerProcess | None] = deque()  # None: one that could not be started
        self._busy: set[WorkerProcess] = set()
        self._dying: list[WorkerProcess] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._free = asyncio.Semaphore(cfg.num_workers)
        self._closed = False

    def start(self) -> None:
        """Start the workers and wait until each has its reward.

        Raises:
            SlimeError: the reward cannot be created; names the distribution it comes from.
        """
        if self._log_path:
            self._log = self._log_path.open("ab")
        try:
            workers = []
            for _ in range(self._cfg.num_workers):
                workers.append(self._spawn())
                self._idle.append(workers[-1])
            for worker in workers:
                worker.wait_until_ready()
        except SlimeError:
            self.close()
            raise
        except OSError as error:
            self.close()
            todo = "Let the machine have more processes and open files (ulimit -u, ulimit -n), or lower it."
            raise SlimeError(f"a worker cannot be started: {error}", where="reward.num_workers", todo=todo) from error

    async def score(self, sample: Sample) -> Verdict:
        """The verdict on one sample; never raises, whatever the reward or the sample is."""
        async with self._slots():
            lost: list[str] = []
            while not self._closed:
                if (worker := self._take(fresh=bool(lost))) is None:
                    return Verdict.error("the machine has no room for another worker process of the reward")
                try:
                    verdict = await worker.judge(sample, self._cfg.timeout_s)
                    return _CLOSED if self._closed else verdict
                except LostWorkerError as error:
                    lost.append(str(error))
                finally:
                    self._give_back(worker)
                if len(lost) == 2:
                    return Verdict.error(f"two workers of the reward were lost, the second one new: {'; '.join(lost)}")
                self._note(f"a worker was lost: {lost[0]}. Its sample goes to a new one")
            return _CLOSED

    def close(self) -> None:
        """Kill the workers and all they started, and return when they are gone. Scores in flight become errors."""
        self._closed = True
        idle = [worker for worker in self._idle if worker is not None]
        for worker in idle:
            worker.retire()
        for worker in self._busy:
            worker.hang_up()
        for worker in [*idle, *self._busy, *self._dying]:
            worker.wait()
        self._idle.clear()
        self._dying.clear()
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> RewardService:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _slots(self) -> asyncio.Semaphore:
        """One slot a worker; an asyncio semaphore belongs to one event loop, so a new loop gets a new one."""
        if self._loop is not (loop := asyncio.get_running_loop()):
            assert not self._busy, "one event loop at a time"
            self._loop, self._free = loop, asyncio.Semaphore(self._cfg.num_workers)
        return self._free

    def _take(self, *, fresh: bool) -> WorkerProcess | None:
        """The worker that has been idle longest, or one that has judged nothing; None if it cannot be started."""
        assert self._idle, "start() comes first, and one event loop at a time"
        worker = (self._idle.pop() if fresh else self._idle.popleft()) or self._spawned()
        if worker is None:
            self._idle.append(None)
        else:
            self._busy.add(worker)
        return worker

    def _give_back(self, worker: WorkerProcess) -> None:
        """Take back a worker, or the place of one that is not reusable; a new one is the last to be idle."""
        self._busy.remove(worker)
        if not worker.reusable:
            worker.retire()
            self._dying = [old for old in [*self._dying, worker] if not old.ended]
        if not self._closed:
            self._idle.append(worker if worker.reusable else self._spawned())

    def _spawned(self) -> WorkerProcess | None:
        """A new worker; None if the machine cannot have one more process or file now: the next sample tries again."""
        try:
            return self._spawn()
        except OSError as error:
            self._note(f"no worker can be started: {error}")
            return None

    def _spawn(self) -> WorkerProcess:
        return WorkerProcess(self._setup, subprocess.DEVNULL if self._log is None else self._log)

    def _note(self, text: str) -> None:
        if self._log is not None:
            with suppress(OSError):  # a full disk must not cost verdicts
                os.write(self._log.fileno(), f"[slime] {text}\n".encode())
