"""The scorer of a worker: the process below its guard that runs somebody's code."""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import signal
import socket
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from guarded_workers import room, wire
from guarded_workers.guard import MAX_PROCESSES, Guard, note
from guarded_workers.processes import children
from guarded_workers.starts import Starts, listener
from guarded_workers.wire import Setup, StartError

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>


class Servant(Protocol):
    """Somebody's code, made of a name and options in the worker. The driver learns its attribute `told`, JSON, as it
    starts."""

    def answer(self, message: Any, line: Line, /) -> Any:
        """JSON. May raise, a `wire.FaultError` where the words are its own."""


@runtime_checkable
class _Explained(Protocol):
    what: str
    where: str
    todo: str


def main(driver_fd: int, guard_fd: int) -> None:
    """Become the guard, over the socket `guard_fd`; returns only in the scorer, which serves `driver_fd`."""
    driver, guard = socket.socket(fileno=driver_fd), socket.socket(fileno=guard_fd)
    setup: Setup = wire.message(wire.Requests(driver).receive()[1])
    has_room, driver_pid = room.enter(setup.hidden), os.getppid()
    _adopt_orphans()
    parent, (above, below), (read_end, write_end) = os.getpid(), socket.socketpair(), os.pipe()
    scorer = os.fork()
    if scorer:
        driver.close()
        below.close()
        os.close(write_end)
        starts = _starts_of(above)
        if setup.tells:
            note(_holds(setup, starts is not None, has_room, room.sees(driver_pid)))
        Guard(guard, above, scorer, read_end, setup, starts=starts, has_room=has_room).run()
    _end_with(parent)
    _ask_for_starts(below)
    guard.close()
    above.close()
    os.close(read_end)
    os.dup2(write_end, 1)
    os.dup2(write_end, 2)
    os.close(write_end)
    serve(driver, below, setup)


def _ask_for_starts(guard: socket.socket) -> None:
    descriptor = listener()
    socket.send_fds(guard, [b"."], [] if descriptor is None else [descriptor])
    if descriptor is not None:
        os.close(descriptor)


def _starts_of(scorer: socket.socket) -> Starts | None:
    descriptors = socket.recv_fds(scorer, 1, 1)[1]
    return Starts(descriptors[0]) if descriptors else None


def _holds(setup: Setup, counts_starts: bool, has_room: bool, sees_others: bool) -> str:
    """A line on what is in force here, and what is not (README.md)."""
    facts = {
        f"no more than {MAX_PROCESSES} processes at a time, however fast they start (seccomp)": counts_starts,
        f"/dev/shm and TMPDIR of its own, counted in {setup.key}.memory_mb (namespaces)": has_room,
        "no sight of the memory and environment of other processes": not sees_others,
    }
    named = {True: f"the {setup.kind} has", False: "this machine does not permit"}
    lists = {there: "; ".join(fact for fact, holds in facts.items() if holds == there) for there in named}
    return ". ".join(f"{named[there]}: {listed}" for there, listed in lists.items() if listed)


def _adopt_orphans() -> None:
    result = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    assert result == 0, os.strerror(ctypes.get_errno())


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, which may have happened by now."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def serve(driver: socket.socket, guard: socket.socket, setup: Setup) -> None:
    """Create the servant and say so, or why not; then answer requests until the guard ends this process."""
    try:
        servant = create(setup)
    except StartError as error:
        driver.sendall(wire.encode(wire.Answer(wire.START, error=error, last=True)))
        signal.pause()
    _limit_memory(setup.memory_mb)
    order = _Order(guard)
    driver.sendall(wire.encode(wire.Answer(wire.START, getattr(servant, "told", None))))
    _answer(driver, order, servant, setup)


class _Order:
    """The scorer's way to have the guard kill what a request started and left. Most requests start nothing: their check
    costs two system calls, no message."""

    def __init__(self, guard: socket.socket) -> None:
        self._guard = guard
        parent = os.getppid()
        self._siblings = os.open(f"/proc/{parent}/task/{parent}/children", os.O_RDONLY)
        self._helpers = set(children(os.getpid()))
        self._ask()

    def restore(self) -> None:
        """Return when nothing is left of what the request started."""
        if not self._is_kept():
            self._ask()
            self._bury()

    def _is_kept(self) -> bool:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # neither children, nor (orphans are adopted by the guard) siblings
            return os.pread(self._siblings, 64, 0).split() == [str(os.getpid()).encode()]
        return False

    def _ask(self) -> None:
        self._guard.sendall(b".")
        self._guard.recv(1)

    def _bury(self) -> None:
        """Ask the killed children how they ended, else they stay as zombies; helpers are the servant's to ask."""
        with suppress(ChildProcessError):
            ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
            while (dead := os.waitid(os.P_ALL, 0, ended)) and dead.si_pid not in self._helpers:
                os.waitpid(dead.si_pid, 0)


def create(setup: Setup) -> Servant:
    """Make the servant. Raises StartError where its factory raised; an error that says `what`, `where` and `todo` keeps
    its words."""
    module, _, function = setup.servant.partition(":")
    try:
        servant: Servant = getattr(importlib.import_module(module), function)(setup.name, setup.options)
    except Exception as error:
        if isinstance(error, _Explained):
            raise StartError(error.what, where=error.where, todo=error.todo) from error
        traceback.print_exc()
        raise StartError(
            f"{setup.kind} '{setup.name}' cannot be created: {describe(error)}",
            where=setup.where,
            todo=f"Check {setup.key}.options against its documentation, or report it to its author.",
        ) from error
    return servant


def _limit_memory(memory_mb: int) -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit, hard = size + memory_mb * 2**20, resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _answer(driver: socket.socket, order: _Order, servant: Servant, setup: Setup) -> None:
    process, line = os.getpid(), Line(driver)
    while (request := line.next_request()) is not None:
        value, fault, last = None, "", False
        try:
            value = servant.answer(wire.message(request), line)
        except MemoryError:
            # What the servant holds may be half built, so this worker is replaced after saying why.
            fault = f"MemoryError: the {setup.kind} grew by more than {setup.key}.memory_mb={setup.memory_mb} MiB"
            last = True
        except wire.FaultError as error:
            fault = str(error)
        except Exception as error:  # noqa: BLE001  (somebody's code: whatever it raises is the answer)
            traceback.print_exc()
            fault = describe(error, own_frames=1 + setup.own_frames)
        if os.getpid() != process:
            os._exit(0)  # a child that the servant forked and forgot to end must not answer too
        order.restore()
        line.answer(value, fault, last=last)


class Line:
    """A worker's connection with the driver, over a socket that blocks."""

    def __init__(self, driver: socket.socket) -> None:
        self._driver, self._requests = driver, wire.Requests(driver)
        self._number, self._num_questions = wire.START, 0

    def next_request(self) -> bytes | None:
        """The bytes of the next request; None when the driver is gone."""
        before = self._number
        try:
            while self._number == before:  # what comes late for the request before is nobody's
                self._number, request = self._requests.receive()
        except EOFError:
            return None
        return request

    def answer(self, value: Any, fault: str, *, last: bool) -> None:
        """Answer the request."""
        try:
            self._send(wire.Answer(self._number, value, fault, last=last))
        except wire.FaultError as error:
            self._send(wire.Answer(self._number, fault=str(error), last=last))

    def ask(self, value: Any) -> int:
        """Ask the driver something; its answer comes as a message `(question, answer)` with the number returned."""
        self._num_questions += 1
        self._send(wire.Answer(self._number, value, question=self._num_questions))
        return self._num_questions

    def fileno(self) -> int:
        return self._driver.fileno()

    def receive(self) -> list[Any]:
        """Wait for the next message; empty if it belongs to an earlier request. EOFError when the driver is gone."""
        number, request = self._requests.receive()
        return [wire.message(request)] if number == self._number else []

    @property
    def has_received(self) -> bool:
        """A message that was read before: `receive` would return at once."""
        return self._requests.has_one

    def _send(self, answer: wire.Answer) -> None:
        try:
            frame = wire.encode(answer)
        except (TypeError, ValueError) as error:
            raise wire.FaultError(f"{error}: what it says must be JSON") from error
        if len(frame) > wire.MAX_ANSWER_BYTES:
            raise wire.FaultError(f"what it says has {len(frame)} bytes; at most {wire.MAX_ANSWER_BYTES}")
        self._driver.sendall(frame)


def describe(error: BaseException, own_frames: int = 1) -> str:
    """Type, message, the line of the called function, and the line that raised if it is another; `own_frames` of the
    caller are above that function."""
    frames = _lines(error.__traceback__)[own_frames:] or _lines(error.__traceback__)
    where = " <- ".join(dict.fromkeys([frames[-1], frames[0]]))
    try:
        said = str(error)
    except Exception as problem:  # noqa: BLE001 because that, too, is somebody's code
        said = f"its text cannot be made ({type(problem).__name__})"
    return wire.one_line(f"{type(error).__name__}: {said}") + f" ({where})"


def _lines(stack: TracebackType | None) -> list[str]:
    return [f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(stack)]
