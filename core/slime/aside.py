"""Looks at files of others in a forked process, which may hang, take all memory or crash: slime tells it in a line.

A signal's handler runs between two steps of Python. The loops of a regular expression, of an integer of a billion
digits or of a library in Rust have none, and only the kernel ends them: by a limit of the process.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import math
import mmap
import os
import re
import resource
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from slime.errors import SlimeError

MEMORY_BYTES = 2**32
"""Memory that the process may take beside slime's."""
WAIT_S = 120.0
"""Seconds between two steps of it: a disk of the network may be slow."""
COMPUTES = 0.05
"""Share of that time in which one that has not stopped has a processor."""
_ANSWER_S = 2.0
"""Seconds in which one that is late tells where it stands."""
_ENDINGS = (signal.SIGINT, signal.SIGTERM)
_STEP, _FOUND = "step", "found"
_NO_ROOM, _OTHERWISE = 3, 4
"""Exit codes for too little memory, and for another exception, which the same work raises again in slime's process."""

_steps: IO[str] | None = None
"""The pipe of such a process, which says what it is about to do."""


def problems_found_aside(find: Callable[[], Iterable[SlimeError]]) -> list[SlimeError]:
    """The problems that `find` finds in a fork, which takes a few milliseconds; its changes of memory are lost. `step`
    bounds it, and says what was wrong if it does not come back."""
    reader, writer = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)  # or the child would raise what is meant for slime
    child = os.fork()
    if not child:
        _work(find, writer)
    try:
        with open(reader, "rb", buffering=0) as file:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)  # here, because what came meanwhile is raised at once
            os.close(writer)
            last, found, late = _follow(file, child)
            if late:
                place = _place(child, file)
                os.kill(child, signal.SIGKILL)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if found is not None:
        return [SlimeError(**each) for each in found]
    if code == _OTHERWISE or last is None:
        return list(find())
    reason = f"nothing came within {WAIT_S:g} s{place}" if late else _reason(code, last["seconds"])
    what = f"{last['what']}: {reason}"
    return [SlimeError(what, where=last["where"], todo=last["todo"])]


def step(seconds: float, fault: SlimeError) -> None:
    """Limit the processor time of a process aside, in seconds, until its next step; elsewhere nothing happens. If it
    takes more, or crashes, the problem is `fault`, with the reason added."""
    if _steps is not None:
        _say({"kind": _STEP, "seconds": seconds, **fault.document()})
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        used = math.ceil(time.process_time() + seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (used if most == resource.RLIM_INFINITY else min(used, most), most))


def _follow(file: IO[bytes], child: int) -> tuple[Any, list[dict[str, str]] | None, bool]:
    """The last step, what was found if the work came to its end, and whether a step took too long by the clock without
    computing: a busy machine makes it long, and its processor time has a limit of its own."""
    poll, rest, last, computed = select.poll(), b"", None, 0.0
    poll.register(file, select.POLLIN)
    while True:
        if not poll.poll(WAIT_S * 1000):
            before, computed = computed, _computed(child)
            if computed < before + COMPUTES * WAIT_S:
                return last, None, True
            continue
        data = file.read(2**16)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if said["kind"] == _FOUND:
                return last, said["problems"], False
            last = said
        if not data:
            return last, None, False


def _computed(child: int) -> float:
    """Seconds of processors that the child has taken, and processes that it has started."""
    ticks, pids = 0, [child]
    while pids:
        place = Path(f"/proc/{pids.pop()}")
        with suppress(OSError):  # it has ended, and its parent has its seconds
            ticks += sum(map(int, (place / "stat").read_text().rpartition(")")[2].split()[11:15]))
            pids += map(int, (place / "task" / place.name / "children").read_text().split())
    return ticks / os.sysconf("SC_CLK_TCK")


def _work(find: Callable[[], Iterable[SlimeError]], writer: int) -> None:
    """All of the child's life."""
    global _steps
    code = _OTHERWISE
    try:
        for each in _ENDINGS:
            signal.signal(each, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDINGS)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries in Rust print their panics
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # 100 threads of it would take the memory
        limit_growth(MEMORY_BYTES)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _steps = open(writer, "w", encoding="utf-8", buffering=1)  # noqa: SIM115  # until the process ends
        faulthandler.register(signal.SIGUSR1, _steps, all_threads=False)
        gc.freeze()  # garbage of slime's process is not this one's: a finalizer may wait for a thread that is not here
        problems = list[SlimeError]()
        try:
            problems += find()
        except SlimeError as problem:
            problems.append(problem)
        _say({"kind": _FOUND, "problems": [each.document() for each in problems]})
        code = 0
    except (MemoryError, RecursionError):
        code = _NO_ROOM
    finally:
        os._exit(code)


def limit_growth(num_bytes: int) -> tuple[int, int]:
    """Limit the address space of this process to what it has and `num_bytes` more; returns the limits before."""
    with open("/proc/self/statm", "rb", buffering=0) as file:
        wanted = int(file.read().split()[0]) * mmap.PAGESIZE + num_bytes
    own, most = resource.getrlimit(resource.RLIMIT_AS)
    limits = [limit for limit in (wanted, own, most) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), most))
    return own, most


def _say(said: Mapping[str, Any]) -> None:
    assert _steps is not None, "only a process aside speaks"
    _steps.write(json.dumps(said) + "\n")
    _steps.flush()


def _place(child: int, file: IO[bytes]) -> str:
    """Where the child stands, in brackets; nothing if it does not answer, or is not in Python."""
    os.kill(child, signal.SIGUSR1)
    poll, told = select.poll(), b""
    poll.register(file, select.POLLIN)
    while poll.poll(_ANSWER_S * 1000) and (data := file.read(2**16)):
        told += data
        if frame := re.search(rb'File "(.*)", line (\d+) ', told):
            file_name, line = map(os.fsdecode, frame.groups())
            return f" (it stands in {file_name}:{line})"
    return ""


def _reason(code: int, seconds: float) -> str:
    if code == -signal.SIGXCPU:
        return f"it takes more than {seconds:g} s of a processor"
    if code == _NO_ROOM:
        return f"it takes more than {MEMORY_BYTES / 2**30:g} GiB or never ends"
    if code < 0:
        return f"the process that looked at it was ended by {signal.Signals(-code).name}"
    return f"the process that looked at it ended with exit code {code}"
