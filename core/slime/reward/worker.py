"""What runs in a reward worker: a guard process, and below it the one that scores.

The guard is the session leader and adopts every orphan below it. It never runs a plugin's code, so it always answers:
when the service closes its end of the socket (also by dying), or when the scoring process dies, the guard kills
whatever the reward started, and ends as the scoring process ended.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import select
import signal
import socket
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from slime.errors import SlimeError
from slime.reward import wire
from slime.types import Sample, Verdict, VerdictKind

if TYPE_CHECKING:
    from slime.contracts import RewardModel

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
MAX_REASON_CHARS = 500


@dataclass(frozen=True)
class Setup:
    """The first message to a worker: which reward, and the MiB of address space it may add to its start-up size."""

    name: str
    options: Mapping[str, Any]
    memory_mb: int


def main(fd: int) -> None:
    """Serve the socket `fd`: returns only in the scoring process, when the service hung up."""
    sock, guard = socket.socket(fileno=fd), os.getpid()
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    scorer = os.fork()
    if scorer:
        _guard(sock, scorer)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == guard:  # else it died before the line above
        serve(sock)


def _prctl(option: int, value: int) -> None:
    result = ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
    assert result == 0, os.strerror(ctypes.get_errno())


def _guard(sock: socket.socket, scorer: int) -> NoReturn:
    """Wait for the end of either side, leave no descendant behind, and die the scorer's death."""
    poller = select.poll()
    poller.register(sock, select.POLLRDHUP)
    poller.register(os.pidfd_open(scorer), select.POLLIN)
    poller.poll()
    code = os.waitstatus_to_exitcode(_kill_descendants()[scorer])
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the scorer's core dump is enough
        os.kill(os.getpid(), -code)
    os._exit(code)


def _kill_descendants() -> dict[int, int]:
    """Kill children until none is left (orphans of the killed become ours); wait status by process id."""
    statuses: dict[int, int] = {}
    while True:
        for child in Path("/proc/thread-self/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return statuses
        statuses[pid] = status


def serve(sock: socket.socket) -> None:
    """Create the reward, answer None or the SlimeError, then one Verdict for every Sample until the socket closes."""
    setup: Setup = wire.receive(sock)
    try:
        reward = create(setup)
    except SlimeError as error:
        sock.sendall(wire.frame(error))
        return
    _limit_memory(setup.memory_mb)
    sock.sendall(wire.frame(None))
    _answer(sock, reward, setup)


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


def _answer(sock: socket.socket, reward: RewardModel, setup: Setup) -> None:
    scorer = os.getpid()
    while True:
        try:
            sample = wire.receive(sock)
        except EOFError:
            return
        try:
            verdict = judge(reward, sample)
        except MemoryError:
            # What the reward holds may be half built, so this process ends after saying why.
            verdict = Verdict.error(f"MemoryError: the reward grew by more than reward.memory_mb={setup.memory_mb} MiB")
            sock.sendall(wire.frame((verdict, False)))
            return
        if os.getpid() != scorer:
            os._exit(0)  # a child that the reward forked and forgot to end must not answer too
        sock.sendall(wire.frame((verdict, True)))


def judge(reward: RewardModel, sample: Sample) -> Verdict:
    """The reward's verdict, or an ERROR verdict that says what it did instead of giving one. Raises MemoryError."""
    try:
        return checked(reward.score(sample))
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
    return Verdict(answer.kind, value, _one_line(answer.reason), parts)


def _finite(number: Any) -> bool:
    return not isinstance(number, str) and math.isfinite(number)


def describe(error: Exception) -> str:
    """Type, message, the line of the plugin's function that was called, and the line that raised if it is another."""
    frames = _lines(error.__traceback__)[1:] or _lines(error.__traceback__)
    where = " <- ".join(dict.fromkeys([frames[-1], frames[0]]))
    return _one_line(f"{type(error).__name__}: {error}") + f" ({where})"


def _lines(stack: TracebackType | None) -> list[str]:
    return [f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(stack)]


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON_CHARS else line[: MAX_REASON_CHARS - 3] + "..."
