"""The guard of a worker: watches over the scorer, the process that runs somebody's code.

It adopts every orphan below it, and keeps them in bounds: what a request started ends with its answer, all processes
together keep to `memory_mb` and `MAX_PROCESSES`, and their output goes to the log up to a limit. Each start of a
process waits until the guard allows it, so nothing begins while it kills. When the driver hangs up (also by dying) or
the scorer dies, the guard kills all below it, says why, and ends.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from contextlib import suppress
from itertools import islice
from typing import NoReturn

from guarded_workers import processes, room
from guarded_workers.starts import Starts
from guarded_workers.wire import Setup

MAX_PROCESSES = 100
"""Processes of a request at a time. (RLIMIT_NPROC counts all processes of the user, and none of root's.)"""
MAX_HELPERS = 1000
"""Processes of the servant's factory at a time; those of requests come on top of what it keeps."""
MAX_LOG_BYTES_A_WORKER, MAX_LOG_BYTES = 1 << 20, 64 << 20
"""Most bytes of one worker's output in the log, and of all."""

_TICK_S = 0.05
"""Seconds between two looks at the processes below."""
_KILL_WITHIN_S = 2.0
"""Seconds in which what a request left behind has to die; then the whole worker goes."""
KILLED = "was killed by"
_HUNG_UP = select.POLLRDHUP | select.POLLHUP | select.POLLERR
_CHUNK = 1 << 16
_SIGNALS = {number.value: number.name for number in signal.Signals}


class Guard:
    """The guard of one worker.

    Args:
        driver: gets the reason why the guard ends; where it hangs up, the guard ends.
        scorer: on it the scorer asks for order: first when its servant exists, then after requests that leave something
            behind. The servant can write to it, and gains nothing by it.
        pid: the scorer's.
        output: read end of the scorer's standard output and error.
        starts: on it the kernel asks for every process that is to start below; None where it does not ask.
        has_room: /dev/shm is this worker's alone, so that its files count as memory.
    """

    def __init__(
        self,
        driver: socket.socket,
        scorer: socket.socket,
        pid: int,
        output: int,
        setup: Setup,
        *,
        starts: Starts | None,
        has_room: bool,
    ) -> None:
        self._driver, self._scorer, self._pid, self._output, self._setup = driver, scorer, pid, output, setup
        self._starts, self._has_room = starts, has_room
        scorer.setblocking(False)
        self._death = os.pidfd_open(pid)
        self._poller = select.poll()
        self._poller.register(driver, select.POLLRDHUP)
        for descriptor in (scorer.fileno(), self._death, output):
            self._poller.register(descriptor, select.POLLIN)
        if starts:
            self._poller.register(starts.fileno(), select.POLLIN)
        self._helpers: set[tuple[int, str]] | None = None  # what the servant's factory started
        self._max_bytes = self._may_start = 0
        self._next_look = 0.0
        self._num_logged = self._num_cut = 0
        self._has_noted_leftovers = False

    def run(self) -> NoReturn:
        """Keep order until either side ends."""
        while True:
            ready = dict(self._poller.poll(1000 * _TICK_S))
            if ready.get(self._driver.fileno(), 0) & _HUNG_UP:
                self._end()
            if self._output in ready and not self._copy_output():
                self._poller.unregister(self._output)
            if self._death in ready:
                status = os.waitpid(self._pid, 0)[1]
                self._end(f"the {self._setup.kind}'s process {cause(os.waitstatus_to_exitcode(status))}")
            if self._scorer.fileno() in ready:
                self._make_order()
            if self._starts and ready.get(self._starts.fileno(), 0) & select.POLLIN:
                self._let_start(self._starts)
            if (began := time.monotonic()) >= self._next_look:
                self._look()
                self._next_look = began + max(_TICK_S, 4 * (time.monotonic() - began))

    def _make_order(self) -> None:
        """Do what the scorer asked for, and say that it is done."""
        try:
            if not self._scorer.recv(_CHUNK):
                raise BrokenPipeError
            if self._helpers is None:
                self._start()
            else:
                self._kill_leftovers()
            self._scorer.send(b".")
        except ConnectionError:  # the scorer is dying, or the servant has closed what it did not open
            self._poller.unregister(self._scorer)

    def _let_start(self, starts: Starts) -> None:
        """Allow one process more. They are counted again when as many began as there was room for."""
        if not self._may_start:
            most = self._most()
            self._may_start = most - len(self._below(most))
        if not self._may_start:
            self._end_of_too_many()
        self._may_start -= 1
        starts.allow()

    def _most(self) -> int:
        return MAX_HELPERS if self._helpers is None else len(self._helpers) + MAX_PROCESSES

    def _end_of_too_many(self) -> NoReturn:
        most = MAX_HELPERS if self._helpers is None else MAX_PROCESSES
        self._end(f"the {self._setup.kind} ran more than {most} processes at a time")

    def _start(self) -> None:
        """The servant exists: what runs now may stay, and growth is counted from here."""
        below, self._may_start = self._below(), 0
        self._helpers = {processes.identity(pid) for pid in below}
        held = processes.exact_bytes([self._pid, *below], self._bytes_of_files())
        self._max_bytes = held + self._setup.memory_mb * 2**20

    def _look(self) -> None:
        """Hold the processes below to their limits; RLIMIT_AS holds the scorer's own memory."""
        if self._helpers is None:
            return
        most = self._most()
        below, of_files = self._below(most + 1), self._bytes_of_files()
        if len(below) > most:
            self._end_of_too_many()
        if not below and not of_files:
            return
        tree = [self._pid, *below]
        resident = sum(processes.resident_bytes(pid) for pid in tree) + of_files
        # It counts a shared page in every process that has it; the other is exact, and a thousand times slower.
        if resident > self._max_bytes < processes.exact_bytes(tree, of_files):
            setup = self._setup
            limit = f"{setup.key}.memory_mb={setup.memory_mb} MiB"
            self._end(f"the {setup.kind} and what it started grew by more than {limit}")

    def _bytes_of_files(self) -> int:
        return room.num_bytes_held() if self._has_room else 0

    def _kill_leftovers(self) -> None:
        give_up = time.monotonic() + _KILL_WITHIN_S
        while left := [pid for pid in self._below() if processes.identity(pid) not in (self._helpers or ())]:
            if not self._has_noted_leftovers:
                self._has_noted_leftovers = True
                note(f"killed {len(left)} processes that a request left behind (said once a worker)")
            if time.monotonic() > give_up:
                self._end(f"{len(left)} processes that the {self._setup.kind} left behind did not die")
            processes.kill(left)
            time.sleep(0.001)

    def _below(self, at_most: int | None = None) -> list[int]:
        """Everything alive below this process but the scorer, or so many of them (there may be more every moment)."""
        direct = processes.children(os.getpid())
        for pid in direct:
            if pid != self._pid:
                os.waitpid(pid, os.WNOHANG)  # a dead orphan has no other parent to bury it
        alive = (
            pid
            for pid in processes.with_descendants(direct)
            if pid != self._pid and processes.state(pid) not in ("", processes.ZOMBIE)
        )
        return list(islice(alive, at_most))

    def _copy_output(self) -> bool:
        """Copy a piece of the output to the log if it has room; False where nothing more comes."""
        data = os.read(self._output, _CHUNK)
        left = min(MAX_LOG_BYTES_A_WORKER - self._num_logged, MAX_LOG_BYTES - os.fstat(2).st_size)
        kept = max(0, min(left, len(data)))
        _log(data[:kept])
        if kept < len(data) and not self._num_cut:
            note(f"cut here; kept: {MAX_LOG_BYTES_A_WORKER >> 20} MiB a worker, {MAX_LOG_BYTES >> 20} MiB of all")
        self._num_logged += kept
        self._num_cut += len(data) - kept
        return bool(data)

    def _end(self, why: str = "") -> NoReturn:
        """Leave nothing below, tell the driver why, and exit."""
        processes.kill_all_below()
        os.set_blocking(self._output, False)
        with suppress(BlockingIOError):
            while self._copy_output():
                pass
        if self._num_cut:
            note(f"{self._num_cut} bytes that this worker printed were cut")
        with suppress(ConnectionError):  # the driver hung up meanwhile
            self._driver.sendall(why.encode())
        os._exit(0)


def cause(code: int) -> str:
    """The end of a process in words, by its exit code or minus its signal."""
    if code >= 0:
        return f"exited with code {code}"
    hint = " (the kernel sends it when the machine is out of memory)" if code == -signal.SIGKILL else ""
    return f"{KILLED} {_SIGNALS.get(-code, f'signal {-code}')}{hint}"


def note(text: str) -> None:
    """Write a line of this library into the log."""
    _log(f"\n[guard] {text}\n".encode())


def _log(data: bytes) -> None:
    with suppress(OSError):  # a full disk must not cost answers
        os.write(2, data)
