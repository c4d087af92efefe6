"""A pool of workers: what is asked of it occupies one; one that dies or is killed is replaced."""

from __future__ import annotations

import asyncio
import difflib
import os
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from guarded_workers import environment
from guarded_workers.process import LostWorkerError, WorkerProcess
from guarded_workers.wire import FaultError, Setup, StartError

_UNBOUNDED = 10**9
START_TRIES = 3
"""Workers in one place that may be killed as the pool starts."""


class Pool:
    """Workers that all run the same. Requests wait while all are busy, and are served in their order. A pool may be
    used from one event loop after another, but not from two at the same time.

    Args:
        first: workers at the start; others are started when they are asked for.
        most: workers at a time; None: as many as are asked for.
        wanted: variables of the environment that they get although they look like secrets.
        log: file for their output and the stacks of their exceptions; None discards it.
    """

    def __init__(
        self, setup: Setup, first: int, most: int | None, wanted: Collection[str] = (), log: Path | None = None
    ) -> None:
        self._setup, self._first, self._most = setup, first, most or _UNBOUNDED
        self._wanted, self._log_path = wanted, log
        self._environment, self._withheld = environment.split(os.environ, wanted)
        self._log: IO[bytes] | None = None
        self._idle: deque[WorkerProcess] = deque()
        self._busy: set[WorkerProcess] = set()
        self._dying: list[WorkerProcess] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._free = asyncio.Semaphore(self._most)
        self.is_closed = self.has_started = False

    def start(self) -> Any:
        """Start the first workers and wait until each has created its servant; returns what the last one told of it.

        Raises:
            StartError: it cannot be created; or a worker was killed as it started, and so were those in its place.
        """
        self._require_wanted()
        self.has_started = True
        if self._log_path:
            self._log = self._log_path.open("ab")
        if self._withheld:
            self.note(f"withheld from the {self._setup.kind}'s environment: {', '.join(self._withheld)}")
        try:
            for index in range(self._first):
                self._idle.append(self._spawn(tells=index == 0))
            for index in range(self._first):
                self._await_start(index)
        except StartError as error:
            self.close()
            raise StartError(self.explained(error.what), where=error.where, todo=error.todo) from error
        except OSError as error:
            self.close()
            todo = "Let the machine have more processes and open files (ulimit -u, ulimit -n), or lower it."
            where = f"{self._setup.key}.num_workers"
            raise StartError(f"a worker cannot be started: {error}", where=where, todo=todo) from error
        return self._idle[-1].told if self._idle else None

    def _await_start(self, index: int) -> None:
        """Wait for a first worker. One that is killed meanwhile has a successor, a few times."""
        lost: list[str] = []
        while True:
            try:
                return self._idle[index].wait_until_ready()
            except LostWorkerError as error:
                lost.append(str(error))
                if len(lost) == START_TRIES:
                    raise self._all_killed(lost) from error
                self.note(f"a worker was lost: {error}. Another one takes its place")
                self._idle[index].retire()
                self._dying.append(self._idle[index])
                self._idle[index] = self._spawn(tells=index == 0)

    def _all_killed(self, lost: Sequence[str]) -> StartError:
        setup, log = self._setup, f"Read {self._log_path}. " if self._log_path else ""
        made = f"make it in a Python shell: {setup.servant}, of {setup.name!r} and its options"
        what = f"{len(lost)} workers, one after the other: {'; '.join(dict.fromkeys(lost))}"
        todo = f"{log}See dmesg for a kill for memory; if it may kill itself, {made}."
        return StartError(what, where=f"{setup.kind} '{setup.name}'", todo=todo)

    @asynccontextmanager
    async def worker(self, *, fresh: bool = False) -> AsyncIterator[WorkerProcess]:
        """A worker for one request, as soon as there is one; `fresh`: one that has answered nothing yet.

        Raises:
            FaultError: the machine has no room for one, or the pool is closed.
        """
        async with self._slots():
            if self.is_closed:
                raise FaultError("the pool of workers was closed")
            worker = self._take(fresh=fresh)
            try:
                yield worker
            finally:
                self._give_back(worker)

    def close(self) -> None:
        """Kill the workers and all they started, and return when they are gone. Their requests stay open."""
        self.is_closed = True
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

    def explained(self, reason: str) -> str:
        """`reason`, with the way out if it seems to be a variable that is missing."""
        for name in self._withheld:
            if name in reason:
                lists = f"{self._setup.key}.environment lists it"
                return f"{reason} ({name} is withheld from {self._setup.kind}s unless {lists})"
        return reason

    def note(self, text: str) -> None:
        """Write a line of this library into the log."""
        if self._log is not None:
            with suppress(OSError):  # a full disk must not cost answers
                os.write(self._log.fileno(), f"[guard] {text}\n".encode())

    def _require_wanted(self) -> None:
        for name in self._wanted:
            if name not in os.environ:
                near = difflib.get_close_matches(name, os.environ, 1, 0.75)
                meant = f" Did you mean '{near[0]}'?" if near else ""
                todo = f"Set it before this starts, or take it out.{meant}"
                raise StartError(f"the variable {name} is not set", where=f"{self._setup.key}.environment", todo=todo)

    def _slots(self) -> asyncio.Semaphore:
        """One slot a worker; an asyncio semaphore belongs to one event loop, so a new loop gets a new one."""
        if self._loop is not (loop := asyncio.get_running_loop()):
            assert not self._busy, "one event loop at a time"
            self._loop, self._free = loop, asyncio.Semaphore(self._most)
        return self._free

    def _take(self, *, fresh: bool) -> WorkerProcess:
        """The worker that has been idle longest, or one that has answered nothing."""
        chosen = next((each for each in self._idle if not (fresh and each.has_answered)), None)
        if chosen:
            self._idle.remove(chosen)
        else:
            try:
                chosen = self._spawn()
            except OSError as error:
                self.note(f"no worker can be started: {error}")
                what = f"the machine has no room for another worker process of the {self._setup.kind}"
                raise FaultError(what) from error
        self._busy.add(chosen)
        return chosen

    def _give_back(self, worker: WorkerProcess) -> None:
        """Take back a worker. A new one, in the place of one that is not reusable, is the last to be idle."""
        self._busy.remove(worker)
        if not worker.reusable:
            worker.retire()
            self._dying = [old for old in [*self._dying, worker] if not old.ended]
        if self.is_closed:
            return
        if worker.reusable:
            self._idle.append(worker)
            return
        with suppress(OSError):  # the machine has no room now; who asks next tries again
            self._idle.append(self._spawn())

    def _spawn(self, *, tells: bool = False) -> WorkerProcess:
        log = subprocess.DEVNULL if self._log is None else self._log
        return WorkerProcess(replace(self._setup, tells=tells), log, self._environment)
