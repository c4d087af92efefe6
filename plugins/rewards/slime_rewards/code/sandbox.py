"""Runs a program that nobody trusts, confined by the kernel (`confine.py`), or not at all."""

from __future__ import annotations

import marshal
import os
import platform
import select
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

from slime_rewards.code import confine
from slime_rewards.code.calls import MACHINES, filter_of

WALL_PER_CPU = 4
"""Seconds by the clock for each of processor time; a busy machine is not a program's fault."""
START_S = 30.0
"""Seconds in which a program begins; a tenth of a second is usual."""
MAX_THREADS, TICK_S = 512, 0.05
"""Threads that it may have, and how often they are counted."""
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
"""The last, because glibc reserves 128 MiB of addresses for each thread otherwise, which `memory_mb` would count."""
_BUSY = 0.5
"""Share of the time by the clock: a program that waited longer for a processor, and ran for less, was not late by
itself. Many threads that keep each other waiting run for longer."""
_TELLING_S = 2.0
"""Seconds of the clock from which that says something."""
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/usr/share/zoneinfo",
           "/dev/null", "/dev/zero", "/dev/urandom")  # fmt: skip


def _readable() -> list[str]:
    paths = sysconfig.get_paths()
    return [*{paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"]}, *_SYSTEM]


@cache
def called_source() -> str:
    """The text of `called.py`, which calls a program's function."""
    return Path(__file__).with_name("called.py").read_text(encoding="utf-8")


_TOLD = ("code", "call", "path", "before", "names", "prefers_methods", "cpu_s", "memory_mb", "output_bytes")


class Features(NamedTuple):
    """Features of the kernel that confine a program beside the filter of system calls.

    Attributes:
        landlock: the version whose rights are used.
        namespaces: it sees neither processes nor files but those that it may read.
    """

    landlock: int
    namespaces: bool


@dataclass(frozen=True)
class Spec:
    """One program.

    Attributes:
        call: an expression that is evaluated behind the code, whose value as text is the output; None: the output is
            what it prints.
        before: code that comes before it. Where that fails, the program is not run.
        names, prefers_methods: of `slime_rewards.code.called.run`.
        memory_mb: MiB by which it may grow.
        unconfined: run it with limits alone.
        most_s: seconds by the clock that are left for it, where they are fewer than `wall_s`.
        features: fewer of the kernel's than there are, for tests; None: all.
    """

    code: str
    call: str | None = None
    before: str = ""
    names: tuple[str, ...] = ()
    prefers_methods: bool = False
    cpu_s: int = 5
    memory_mb: int = 512
    output_bytes: int = 1 << 20
    unconfined: bool = False
    path: list[str] = field(default_factory=lambda: [entry for entry in sys.path if entry])
    readable: list[str] = field(default_factory=_readable)
    most_s: float = float("inf")
    features: Features | None = None

    @property
    def wall_s(self) -> float:
        return min(WALL_PER_CPU * self.cpu_s + 2, self.most_s)

    def document(self) -> dict[str, Any]:
        """The input of `confine.py`."""
        told: dict[str, Any] = {name: getattr(self, name) for name in _TOLD}
        told["called"] = called_source() if self.call is not None else ""
        told["confined"] = None
        if not self.unconfined:
            machine, used = platform.machine(), self.features or features()
            filters = {"seccomp": MACHINES[machine][2], "calls": filter_of(machine)}
            told["confined"] = {"readable": self.readable, **used._asdict(), **filters}
        return told


class Ended(NamedTuple):
    """The end of a program.

    Attributes:
        output: text; what is no UTF-8 is replaced.
        fault: empty if it ended by itself with exit code 0.
        is_late: it was ended because it took too long.
    """

    output: str
    fault: str = ""
    is_late: bool = False


class NotRunError(Exception):
    """A program was not run, or not for long enough to tell how it ends; says why."""


class UnconfinedError(NotRunError):
    """The machine does not permit to confine it."""


@cache
def missing() -> str:
    """Lacks of the machine for the sandbox, in words; empty if there are none."""
    if platform.machine() not in MACHINES:
        return f"it knows the system calls of {' and '.join(MACHINES)}, not of {platform.machine()}"
    version, least = confine.landlock(), confine.LEAST_LANDLOCK
    if version < least:
        has = f"has version {version}" if version > 0 else "has none"
        return f"Landlock {least} or newer is needed (Linux 6.2), the kernel {has}"
    with suppress(OSError):
        if "errno" in Path("/proc/sys/kernel/seccomp/actions_avail").read_text():
            return ""
    return "the kernel has no seccomp filters"


@cache
def features() -> Features:
    """Features that this process may use where nothing is missing. A program that does nothing tries namespaces."""
    used = Features(min(confine.landlock(), confine.MOST_LANDLOCK), namespaces=True)
    try:
        _run(Spec("", features=used), "")
    except UnconfinedError:
        return used._replace(namespaces=False)
    return used


def run(spec: Spec, given: str = "") -> Ended:
    """Run a program, whose standard input is `given`.

    Raises:
        UnconfinedError: it was not run.
        NotRunError: the machine was too busy for it.
    """
    if not spec.unconfined and (lacks := missing()):
        raise UnconfinedError(lacks)
    return _run(spec, given)


def _run(spec: Spec, given: str) -> Ended:
    with (
        tempfile.TemporaryFile() as told,
        tempfile.TemporaryFile() as source,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryDirectory() as empty,
    ):
        for file, data in ((told, marshal.dumps(spec.document())), (source, given.encode(errors="replace"))):
            file.write(data)
            file.seek(0)
        reader, writer = os.pipe()
        # It is read by a description of its own: of the other one the program may set the flags.
        with open(reader, "rb") as begins, open(f"/proc/self/fd/{output.fileno()}", "rb") as written:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-X", "utf8", confine.__file__, str(told.fileno()), str(writer)],
                    stdin=source,
                    stdout=output,
                    stderr=subprocess.DEVNULL,
                    cwd=empty,
                    env=_ENVIRONMENT,
                    pass_fds=(told.fileno(), writer),
                    start_new_session=True,
                )
            finally:
                os.close(writer)
            return _ended(process, spec, begins, written)


def _ended(process: subprocess.Popen[bytes], spec: Spec, begins: IO[bytes], output: IO[bytes]) -> Ended:
    """The end of a process. Its clock begins with its first line: a start may take long on a busy machine."""
    end, begun = _End(""), select.poll()
    begun.register(begins, select.POLLIN)
    try:
        begun.poll(1000 * START_S)
        end = _end_of(process, spec)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if (said := begins.read()) != confine.BEGUN:
        why = said.decode(errors="replace")
        if why.startswith(confine.BEFORE):
            raise NotRunError(f"what the label puts before it fails: {why.removeprefix(confine.BEFORE)}")
        why = why or f"it ended with {process.returncode} before the program's first line"
        raise UnconfinedError(f"the program could not be confined: {why}")
    if end.is_starved:
        raise NotRunError(f"the machine is too busy: {end.fault}")
    text, code = output.read(spec.output_bytes).decode(errors="replace"), process.returncode
    if end.fault:
        return Ended(text, end.fault, end.is_late)
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return Ended(text, f"it took more than {spec.cpu_s} s of processor time", is_late=True)
    if code and os.fstat(output.fileno()).st_size >= spec.output_bytes:
        return Ended(text, f"it wrote more than {spec.output_bytes} bytes")
    return Ended(text, f"it ended with {code}" if code else "")


class _End(NamedTuple):
    """The reason why a program is ended from here; empty where it ended by itself."""

    fault: str
    is_late: bool = False
    is_starved: bool = False


def _end_of(process: subprocess.Popen[bytes], spec: Spec) -> _End:
    """Wait for it, and look at its threads now and then: no limit of the kernel's counts those of root."""
    start, poll = time.monotonic(), select.poll()
    descriptor = os.pidfd_open(process.pid)
    poll.register(descriptor, select.POLLIN)
    try:
        while (took := time.monotonic() - start) < spec.wall_s:
            if poll.poll(1000 * min(TICK_S, spec.wall_s - took)):
                process.wait()
                return _End("")
            if _number_of_threads(process.pid) > MAX_THREADS:
                return _End(f"it had more than {MAX_THREADS} threads")
    finally:
        os.close(descriptor)
    ran, waited = _processor_time(process.pid)
    if took >= _TELLING_S and ran < _BUSY * took < waited:
        return _End(f"in {took:.1f} s it waited {waited:.1f} s for a processor", is_starved=True)
    return _End("it waited too long", is_late=True)


def _below(pid: int) -> list[int]:
    """A process and its children: with namespaces the program is the only child of the one that was started."""
    try:
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    except OSError:
        return []


def _number_of_threads(pid: int) -> int:
    most = 0
    for each in _below(pid):
        with suppress(OSError):  # it has ended
            most = max(most, os.stat(f"/proc/{each}/task").st_nlink - 2)
    return most


def _processor_time(pid: int) -> tuple[float, float]:
    """Seconds that a process and those below it ran, ended threads included; and the most seconds that one of their
    threads was ready to run and did not."""
    ran, waited = 0.0, 0.0
    for each in _below(pid):
        with suppress(OSError):
            user, system = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[11:13]
            ran += (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
            for task in Path(f"/proc/{each}/task").iterdir():
                waited = max(waited, int((task / "schedstat").read_text().split()[1]) / 1e9)
    return ran, waited
