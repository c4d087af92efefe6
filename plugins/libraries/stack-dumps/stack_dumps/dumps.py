"""Stacks of the threads of this host's processes, hung ones included.

A process calls `register` once. Whoever sees something hang calls `look`, which sends SIGUSR1. faulthandler's C handler
writes the stack, also of a process that is stuck in C code or holds the GIL. Of one that writes nothing, the kernel
says what state it is in; where py-spy is installed, it reads the stack from outside.
"""

from __future__ import annotations

import faulthandler
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

QUIET_S = 0.2
"""A stack is whole once its file has not grown for this long."""
OUTSIDE_S = 10.0
"""Seconds that py-spy gets for one process."""
_STATES = {
    psutil.STATUS_STOPPED: "stopped (T)",
    psutil.STATUS_TRACING_STOP: "stopped by a debugger (t)",
    psutil.STATUS_DISK_SLEEP: "in uninterruptible sleep (D)",
}
"""The kernel's letter beside psutil's word, where the state is what is wrong."""
_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)

_registered: list[IO[str]] = []  # faulthandler keeps the descriptor only; the file must stay open


def register(stack_file: Path) -> None:
    """On SIGUSR1, append the stack of every thread of this process to `stack_file`, which is called `<name>.stack`.

    The first line names the process and its start time: the signal is deadly to a stranger that got the number of a
    dead process.
    """
    stack_file.parent.mkdir(parents=True, exist_ok=True)
    file = stack_file.open("w")
    file.write(f"{os.getpid()} {psutil.Process().create_time()}\n")
    file.flush()
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
    _registered.append(file)


@dataclass(frozen=True)
class StackDump:
    """Stacks of one process.

    Attributes:
        name: under which it registered; empty if it never did.
        stack: of each of its threads, as it wrote it; empty if it did not answer.
        state: the kernel's word on one that did not answer.
        more: its command line, and its stack if py-spy could read it.
    """

    name: str
    pid: int
    host: str
    stack: str
    state: str = ""
    more: str = ""

    def __str__(self) -> str:
        return f"{self.label}: {self.stack or f'no stack; {self.state}{self.more}'}"

    @property
    def label(self) -> str:
        return f"{self.name} (pid {self.pid} on {self.host})".lstrip()

    def standing(self, within: str = "") -> str:
        """The function that its main thread is in, the innermost of a file with `within` in its path if there is one;
        or its state."""
        if not self.stack:
            return self.state
        frames = self._frames()
        return _in_words(next((frame for frame in frames if within in frame["file"]), frames[0] if frames else None))

    @property
    def innermost(self) -> str:
        """The function that its main thread is in, whoever's it is."""
        return _in_words(next(iter(self._frames()), None))

    def _frames(self) -> list[re.Match[str]]:
        _, _, current = self.stack.rpartition("Current thread")
        return list(_FRAME.finditer(current.partition("\n\n")[0]))


def _in_words(frame: re.Match[str] | None) -> str:
    return f"in {frame['name']} ({Path(frame['file']).name}:{frame['line']})" if frame else "outside of Python"


def look(pids: Sequence[int], folder: Path, answer_s: float = 5.0) -> list[StackDump]:
    """The stacks of processes of this host, whatever state they are in.

    Args:
        pids: processes to ask, beside every living one that registered in `folder`.
        answer_s: seconds that all of them together get to write their stacks.
    """
    files = _stack_files(folder)
    before = {pid: path.stat().st_size for pid, path in files.items()}
    asked = {pid: size for pid, size in before.items() if _ask(pid)}
    _wait_for(asked, files, answer_s)
    everyone = dict.fromkeys([*pids, *files])
    return [_seen(pid, files.get(pid), before.get(pid, 0)) for pid in everyone]


def _ask(pid: int) -> bool:
    """Send the signal; False if the process ended meanwhile."""
    try:
        os.kill(pid, signal.SIGUSR1)
    except ProcessLookupError:
        return False
    return True


def _stack_files(folder: Path) -> dict[int, Path]:
    """The stack file of each registered process that is still alive."""
    headers = {path: path.open().readline().split() for path in folder.glob("*.stack")}
    whole = {path: header for path, header in headers.items() if len(header) == 2}  # not one that registers just now
    return {int(pid): path for path, (pid, started) in whole.items() if _is_alive(int(pid), float(started))}


def _is_alive(pid: int, started: float) -> bool:
    try:
        process = psutil.Process(pid)
        return bool(process.create_time() == started and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _wait_for(before: dict[int, int], files: dict[int, Path], answer_s: float) -> None:
    """Wait until every file has grown and then kept still, or the time is over."""
    deadline = time.monotonic() + answer_s
    sizes = before
    while time.monotonic() < deadline:
        time.sleep(QUIET_S)
        last, sizes = sizes, {pid: files[pid].stat().st_size for pid in before}
        if sizes == last and all(sizes[pid] > before[pid] for pid in before):
            return


def _seen(pid: int, file: Path | None, offset: int) -> StackDump:
    stack = file.read_bytes()[offset:].decode(errors="replace").strip() if file else ""
    state, more = ("", "") if stack else _state(pid)
    return StackDump(file.stem if file else "", pid, socket.gethostname(), stack, state, more)


def _state(pid: int) -> tuple[str, str]:
    """State of a process that said nothing, and more of it."""
    try:
        process = psutil.Process(pid)
        status = process.status()
        waits = "" if status == psutil.STATUS_STOPPED else _waits_in(pid)
        return f"{_STATES.get(status, status)}{waits}", f": {' '.join(process.cmdline())}{_from_outside(pid)}"
    except psutil.NoSuchProcess:
        return "gone", ""


def _waits_in(pid: int) -> str:
    """The kernel's function that it sleeps in, where the kernel tells."""
    with suppress(OSError):
        waits = Path(f"/proc/{pid}/wchan").read_text()
        return f" in the kernel's {waits}" if waits not in ("", "0") else ""
    return ""


def _from_outside(pid: int) -> str:
    """Its Python stack as py-spy reads it: without stopping the process, which may be stopped for good."""
    spy = shutil.which("py-spy")
    if not spy:
        return ""
    try:
        told = subprocess.run([spy, "dump", "--nonblocking", "--pid", str(pid)], capture_output=True, timeout=OUTSIDE_S)
    except subprocess.TimeoutExpired:
        return f"\n(py-spy did not come back within {OUTSIDE_S:g} s)"
    return f"\n{(told.stdout or told.stderr).decode(errors='replace').strip()}"
