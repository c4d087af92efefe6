"""Scores samples in worker processes: a reward may raise, hang, crash or eat memory, and costs one verdict."""

from __future__ import annotations

import asyncio
import subprocess
from collections import deque
from pathlib import Path
from typing import IO

from slime.config.schema import RewardConfig
from slime.errors import SlimeError
from slime.reward.process import WorkerProcess
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
        self._idle: deque[WorkerProcess] = deque()
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
        for _ in range(self._cfg.num_workers):
            self._idle.append(self._spawn())
        try:
            for worker in self._idle:
                worker.wait_until_ready()
        except SlimeError:
            self.close()
            raise

    async def score(self, sample: Sample) -> Verdict:
        """The verdict on one sample; never raises for what the reward did."""
        async with self._slots():
            if self._closed:
                return _CLOSED
            assert self._idle, "start() comes first, and one event loop at a time"
            worker = self._idle.popleft()
            self._busy.add(worker)
            try:
                verdict = await worker.judge(sample, self._cfg.timeout_s)
            finally:
                self._give_back(worker)
            return _CLOSED if self._closed else verdict

    def close(self) -> None:
        """Kill the workers and all they started, and return when they are gone. Scores in flight become errors."""
        self._closed = True
        for worker in self._idle:
            worker.retire()
        for worker in self._busy:
            worker.hang_up()
        for worker in [*self._idle, *self._busy, *self._dying]:
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

    def _give_back(self, worker: WorkerProcess) -> None:
        self._busy.remove(worker)
        if not worker.reusable:
            worker.retire()
            self._dying = [old for old in [*self._dying, worker] if not old.ended]
        if not self._closed:
            self._idle.append(worker if worker.reusable else self._spawn())

    def _spawn(self) -> WorkerProcess:
        return WorkerProcess(self._setup, subprocess.DEVNULL if self._log is None else self._log)
