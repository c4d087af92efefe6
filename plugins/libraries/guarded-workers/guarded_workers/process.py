"""The driver's end of one worker: start it, ask it, kill it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import termios
from array import array
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import IO, Any, TypeVar

from guarded_workers import wire
from guarded_workers.guard import KILLED, cause
from guarded_workers.processes import STOPPED, state
from guarded_workers.worker import describe

START_TIMEOUT_S = 120.0
"""Seconds a worker may take to import and create what it runs."""
END_TIMEOUT_S = 5.0
"""Seconds a guard may take to kill what is below it; only a process stuck in the kernel takes longer than 0.1."""

# A fresh interpreter with this one's import path: neither forked (this process has threads) nor running its `__main__`.
_BOOT = "import sys; sys.path[:] = {path!r}; from guarded_workers.worker import main; main(*{fds})"
T = TypeVar("T")
Serve = Callable[[Any], Awaitable[Any]]
"""Answers a question of a worker."""

_START_FAILURES = (TimeoutError, EOFError, ConnectionError, wire.BrokenWireError)


class LostWorkerError(Exception):
    """The worker did not take the request, or another one had spoiled it; says how."""


class WorkerProcess:
    """The driver's end of a worker.

    Attributes:
        reusable: it neither died nor owes an answer.
        has_answered: it answered a request, not only the start.
        told: what it said of itself as it started (`guarded_workers.worker.Servant`).
    """

    def __init__(self, setup: wire.Setup, log: IO[bytes] | int, environment: Mapping[str, str]) -> None:
        self._setup = setup
        (self._scorer, scorer_end), (self._guard, guard_end) = socket.socketpair(), socket.socketpair()
        with scorer_end, guard_end:
            fds = [scorer_end.fileno(), guard_end.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT.format(path=sys.path, fds=fds)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=fds,
                start_new_session=True,  # a Ctrl-C in the terminal is the driver's to handle
            )
        with suppress(ConnectionError):  # dead already: whoever reads its answer to this learns it
            self._scorer.sendall(wire.request(wire.START, setup))
        self._scorer.setblocking(False)
        self._data = bytearray()
        self._replies: set[asyncio.Task[None]] = set()
        self._sending = asyncio.Lock()
        self._is_ready, self.has_answered, self.reusable = False, False, True
        self.told: Any = None

    def wait_until_ready(self) -> None:
        """Do as `ready`, but block; raises wire.StartError in the place of FaultError."""
        self._scorer.settimeout(START_TIMEOUT_S)
        try:
            while (body := wire.answer_body(self._data)) is None:
                self._take(self._scorer.recv(wire.CHUNK))
            self._started(body)
        except _START_FAILURES as error:
            raise self._not_started(error) from error
        finally:
            self._scorer.setblocking(False)

    async def ask(
        self, message: Any, read: Callable[[Any], T], timeout_s: float | None = None, serve: Serve | None = None
    ) -> T:
        """The worker's answer to a message; afterwards the worker is `reusable`, or has to be replaced.

        Args:
            read: makes the answer of JSON; raises one of `wire.MALFORMED` where that is none.
            serve: answers the worker's questions meanwhile, in tasks of its own. With it a first cancellation is told
                to the worker, which may still answer; None: the first one ends this.

        Raises:
            FaultError: the servant did something else.
            TimeoutError: it took too long.
            LostWorkerError: there is no answer, through no fault of the message that can be seen.
        """
        await self.ready()
        number = wire.START + 1 + secrets.randbits(62)  # who writes to a socket blindly does not guess it
        try:
            request = wire.request(number, message)
        except Exception as error:
            # It may hold anything, and pickling it may raise anything.
            raise wire.FaultError(f"the request cannot be sent to the {self._setup.kind}: {describe(error)}") from error
        self.reusable = False
        try:
            async with asyncio.timeout(timeout_s):
                return await self._ask(number, request, read, serve)
        except TimeoutError:
            if self.has_answered and (self._is_unread() or state(self._process.pid) == STOPPED):
                raise LostWorkerError("it was busy with something else than its request") from None
            raise

    async def _ask(self, number: int, request: bytes, read: Callable[[Any], T], serve: Serve | None) -> T:
        try:
            self._check_is_quiet()
            await asyncio.get_running_loop().sock_sendall(self._scorer, request)
            answer = await self._answer(number, serve)
            result = None if answer.fault else read(answer.value)
        except EOFError:  # it had read the request
            if words := await asyncio.to_thread(self._last_words):
                raise wire.FaultError(words) from None
            raise LostWorkerError(await asyncio.to_thread(self._end_of_guard)) from None
        except ConnectionError as error:
            raise LostWorkerError(await asyncio.to_thread(self._why_it_ended)) from error
        except (wire.BrokenWireError, *wire.MALFORMED) as error:
            if self.has_answered:
                raise LostWorkerError(f"it gave {error}") from error
            raise wire.FaultError(f"the {self._setup.kind} wrote to its worker's socket: {error}") from error
        self.reusable, self.has_answered = not answer.last, True
        if result is None:
            raise wire.FaultError(answer.fault)
        return result

    async def _answer(self, number: int, serve: Serve | None) -> wire.Answer:
        try:
            return await self._last_answer(number, serve)
        except asyncio.CancelledError:
            if serve is None:
                raise
            for task in self._replies:
                task.cancel()
            await self._tell(number, None)
            return await self._last_answer(number, serve)

    async def _last_answer(self, number: int, serve: Serve | None) -> wire.Answer:
        """The answer to the request, behind all that the worker asks before."""
        while (answer := wire.decode(await self._body(), number)).question is not None:
            if serve is None:
                raise wire.BrokenWireError("a question")
            task = asyncio.create_task(self._reply(number, answer.question, serve(answer.value)))
            self._replies.add(task)
            task.add_done_callback(self._replies.discard)
        if self._data:
            raise wire.BrokenWireError("more than one answer")
        return answer

    async def _reply(self, number: int, question: int, reply: Awaitable[Any]) -> None:
        await self._tell(number, (question, await reply))

    async def _tell(self, number: int, message: Any) -> None:
        """Send a message that belongs to a request. Nobody misses it if the worker is gone: who reads notices that."""
        async with self._sending:
            if self._scorer.fileno() >= 0:
                with suppress(OSError):
                    await asyncio.get_running_loop().sock_sendall(self._scorer, wire.request(number, message))

    def _check_is_quiet(self) -> None:
        """An idle worker has nothing to say: what it says was meant for the next request, or is its end."""
        with suppress(BlockingIOError):
            if not self._scorer.recv(1, socket.MSG_PEEK):
                raise ConnectionResetError("closed before the request")
            raise LostWorkerError("it wrote to its socket between two requests")

    async def ready(self) -> None:
        """Return when the worker has created what it runs.

        Raises:
            FaultError: it cannot be created, or the worker ended by itself or hung meanwhile.
            LostWorkerError: the worker was killed meanwhile.
        """
        if self._is_ready:
            return
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                self._started(await self._body())
        except (*_START_FAILURES, wire.StartError) as error:
            self.reusable = False
            why = error if isinstance(error, wire.StartError) else await asyncio.to_thread(self._not_started, error)
            if isinstance(why, LostWorkerError):
                raise why from error
            raise wire.FaultError(f"the {self._setup.kind} could not be created again: {why}") from error

    async def _body(self) -> bytes:
        """The next answer. Cancelling this loses nothing: what came is in `_data`, the rest still to be read."""
        while (body := wire.answer_body(self._data)) is None:
            try:
                self._take(self._scorer.recv(wire.CHUNK))
            except BlockingIOError:
                await self._readable()
        return body

    async def _readable(self) -> None:
        loop, ready, fd = asyncio.get_running_loop(), asyncio.Event(), self._scorer.fileno()
        loop.add_reader(fd, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(fd)

    def _take(self, chunk: bytes) -> None:
        if not chunk:
            raise EOFError("the scorer closed its socket")
        self._data += chunk

    def _started(self, body: bytes) -> None:
        answer = wire.decode(body, wire.START)
        if answer.error:
            raise answer.error
        self._is_ready, self.told = True, answer.value

    def _not_started(self, error: Exception) -> wire.StartError | LostWorkerError:
        if isinstance(error, TimeoutError):
            reason = f"its process took longer than {START_TIMEOUT_S:g} s"
        elif isinstance(error, wire.BrokenWireError):
            reason = f"its process gave {error}"
        else:
            reason = self._why_it_ended()
            if KILLED in reason:  # by whom is not known; what ends by itself would do so again
                return LostWorkerError(f"{reason} as it started")
        kind, name = self._setup.kind, self._setup.name
        todo = f"Make it in a Python shell to see why: {self._setup.servant}, of {name!r} and its options."
        return wire.StartError(f"{kind} '{name}' cannot be created: {reason}", where=self._setup.where, todo=todo)

    def hang_up(self) -> None:
        """Tell the guard to kill everything below it; whoever waits for an answer gets EOFError."""
        for sock in (self._scorer, self._guard):
            sock.shutdown(socket.SHUT_RDWR)
        self._process.send_signal(signal.SIGCONT)  # the servant may have stopped it

    def retire(self) -> None:
        """Kill the worker without waiting; nobody may be waiting for its answer."""
        self.hang_up()
        self._scorer.close()
        self._guard.close()

    @property
    def ended(self) -> bool:
        """The worker and all that it started are gone."""
        return self._process.poll() is not None

    def wait(self) -> int:
        """Wait, after `hang_up`, until nothing of the worker is left; its guard's exit code, or minus a signal."""
        try:
            code = self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if code:  # the guard could not do its work; its process group is most of what was below it
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        return code

    def _is_unread(self) -> bool:
        """A part of the request that the scorer has not taken yet."""
        waiting = array("i", [0])
        fcntl.ioctl(self._scorer, termios.TIOCOUTQ, waiting)
        return waiting[0] > 0

    def _last_words(self) -> str:
        """The guard's reason for the worker's end; empty if the guard was killed, or the driver hung up."""
        words = bytearray()
        with suppress(OSError):  # closed here meanwhile
            while chunk := self._guard.recv(wire.CHUNK):
                words += chunk
        return words.decode(errors="replace")

    def _end_of_guard(self) -> str:
        self.hang_up()
        return f"its guard {cause(self.wait())}"

    def _why_it_ended(self) -> str:
        return self._last_words() or self._end_of_guard()
