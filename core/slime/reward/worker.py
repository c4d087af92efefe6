"""What runs in a reward worker: below its guard, the scorer, which creates the reward and asks it for verdicts."""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
import socket
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from slime.errors import SlimeError
from slime.lifetime import end_with_parent
from slime.reward import wire
from slime.reward.guard import Guard, children
from slime.types import Verdict, VerdictKind

if TYPE_CHECKING:
    from slime.contracts import RewardModel

PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


@dataclass(frozen=True)
class Setup:
    """The first request to a worker: which reward, and the MiB by which it and what it starts may grow."""

    name: str
    options: Mapping[str, Any]
    memory_mb: int


def main(service_fd: int, guard_fd: int) -> None:
    """Become the guard, over the socket `guard_fd`; returns only in the scorer, which serves `service_fd`."""
    service, guard = socket.socket(fileno=service_fd), socket.socket(fileno=guard_fd)
    setup: Setup = wire.message(wire.receive_request(service)[1])
    _adopt_orphans()
    parent, (above, below), (read_end, write_end) = os.getpid(), socket.socketpair(), os.pipe()
    scorer = os.fork()
    if scorer:
        service.close()
        below.close()
        os.close(write_end)
        Guard(guard, above, scorer, read_end, setup.memory_mb).run()
    end_with_parent(parent)
    guard.close()
    above.close()
    os.close(read_end)
    os.dup2(write_end, 1)
    os.dup2(write_end, 2)
    os.close(write_end)
    serve(service, below, setup)


def _adopt_orphans() -> None:
    result = ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    assert result == 0, os.strerror(ctypes.get_errno())


def serve(service: socket.socket, guard: socket.socket, setup: Setup) -> None:
    """Create the reward and say so, or why not; then answer request after request until the guard ends this process."""
    try:
        reward = create(setup)
    except SlimeError as error:
        service.sendall(wire.encode(wire.Answer(wire.START, error=error, last=True)))
        signal.pause()
    _limit_memory(setup.memory_mb)
    order = _Order(guard)
    service.sendall(wire.encode(wire.Answer(wire.START)))
    _answer(service, order, reward, setup)


class _Order:
    """What the scorer does so that nothing a sample started outlives its verdict: asks the guard to kill it.

    Most samples start nothing. Their check costs two system calls, no message.
    """

    def __init__(self, guard: socket.socket) -> None:
        self._guard = guard
        parent = os.getppid()
        self._siblings = os.open(f"/proc/{parent}/task/{parent}/children", os.O_RDONLY)
        self._helpers = set(children(os.getpid()))
        self._ask()

    def restore(self) -> None:
        """Return when nothing is left of what the sample started."""
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
        """Ask the killed children how they ended, else they stay as zombies; helpers are the reward's to ask."""
        with suppress(ChildProcessError):
            ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
            while (dead := os.waitid(os.P_ALL, 0, ended)) and dead.si_pid not in self._helpers:
                os.waitpid(dead.si_pid, 0)


def create(setup: Setup) -> RewardModel:
    """The reward of this name from the plugins of this process.

    Raises:
        SlimeError: no such reward, or its factory raised (a failed late import, an option it does not take).
    """
    from slime import plugins

    chosen = plugins.load().rewards.get(setup.name)
    try:
        reward: RewardModel = chosen.factory(**setup.options)
    except SlimeError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise SlimeError(
            f"reward '{setup.name}' cannot be created: {describe(error)}",
            where=f"plugin {chosen.distribution} {chosen.version}",
            todo="Check reward.options against the plugin's README, or report it to the plugin's author.",
        ) from error
    return reward


def _limit_memory(memory_mb: int) -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit, hard = size + memory_mb * 2**20, resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _answer(service: socket.socket, order: _Order, reward: RewardModel, setup: Setup) -> None:
    scorer = os.getpid()
    while True:
        try:
            number, request = wire.receive_request(service)
        except EOFError:
            return
        last = False
        try:
            verdict = judge(reward, request)
        except MemoryError:
            # What the reward holds may be half built, so this worker is replaced after saying why.
            verdict = Verdict.error(f"MemoryError: the reward grew by more than reward.memory_mb={setup.memory_mb} MiB")
            last = True
        if os.getpid() != scorer:
            os._exit(0)  # a child that the reward forked and forgot to end must not answer too
        order.restore()
        service.sendall(_frame(number, verdict, last))


def _frame(number: int, verdict: Verdict, last: bool) -> bytes:
    frame = wire.encode(wire.Answer(number, verdict, last=last))
    if len(frame) > wire.MAX_ANSWER_BYTES:
        verdict = Verdict.error(f"score returned a Verdict of {len(frame)} bytes; at most {wire.MAX_ANSWER_BYTES}")
        frame = wire.encode(wire.Answer(number, verdict, last=last))
    return frame


def judge(reward: RewardModel, request: bytes) -> Verdict:
    """The reward's verdict on the sample of a request, or an ERROR verdict that says what it did instead of giving one.

    Raises:
        MemoryError: the limit was reached.
    """
    try:
        return checked(reward.score(wire.message(request)))
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  (a plugin's code: whatever it raises becomes a counted verdict)
        traceback.print_exc()
        return Verdict.error(describe(error))


def checked(answer: Any) -> Verdict:
    """`answer` as a verdict of plain finite floats; an ERROR verdict where it is anything else."""
    if not isinstance(answer, Verdict) or not isinstance(answer.kind, VerdictKind):
        return Verdict.error(f"score returned {answer!r:.80}, not a Verdict; wrap a number in Verdict.of(...)")
    numbers = {"value": answer.value, **answer.parts} if answer.value is not None else dict(answer.parts)
    if wrong := [f"{name}={number!r:.80}" for name, number in numbers.items() if not _finite(number)]:
        return Verdict.error(f"score returned a Verdict with {', '.join(wrong)}; every number must be finite")
    value = None if answer.value is None else float(answer.value)
    parts = {str(name): float(number) for name, number in answer.parts.items()}
    return Verdict(answer.kind, value, wire.one_line(answer.reason), parts)


def _finite(number: Any) -> bool:
    return not isinstance(number, str) and math.isfinite(number)


def describe(error: Exception) -> str:
    """Type, message, the line of the plugin's function that was called, and the line that raised if it is another."""
    frames = _lines(error.__traceback__)[1:] or _lines(error.__traceback__)
    where = " <- ".join(dict.fromkeys([frames[-1], frames[0]]))
    return wire.one_line(f"{type(error).__name__}: {error}") + f" ({where})"


def _lines(stack: TracebackType | None) -> list[str]:
    return [f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(stack)]
