"""What was seen last: make processes of this node, hung ones included, say where each of their threads stands.

A process calls `register` once. When something hangs, the driver calls `dump`, which sends SIGUSR1; the stack is
written by faulthandler's C handler, so it comes also from a process that is stuck in C code or holds the GIL.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import psutil

QUIET_S = 0.2
"""A stack is whole once its file has not grown for this long."""

_registered: list[IO[str]] = []  # faulthandler keeps the descriptor only; the file must stay open


def register(stack_file: Path) -> None:
    """On SIGUSR1, append the stack of every thread of this process to `stack_file` (`<run>/logs/<name>.stack`).

    The first line names the process and its start time: a signal nobody waits for is deadly, so `dump` must never
    send one to a stranger that got the number of a dead process.
    """
    stack_file.parent.mkdir(parents=True, exist_ok=True)
    file = stack_file.open("w")
    file.write(f"{os.getpid()} {psutil.Process().create_time()}\n")
    file.flush()
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
    _registered.append(file)


def dump(pids: Sequence[int], folder: Path, answer_s: float = 5.0) -> str:
    """The stacks of processes of this node, one paragraph each, whatever state they are in.

    Args:
        pids: processes to ask, beside every living one that registered in `folder` on this node.
        folder: where the stack files lie (`<run>/logs`).
        answer_s: seconds that all of them together get to write their stacks.

    Returns:
        For each process its name and its stack; or its state and command line if it never registered, is gone or
        does not answer.
    """
    files = _stack_files(folder)
    before = {pid: path.stat().st_size for pid, path in files.items()}
    asked = {pid: size for pid, size in before.items() if _ask(pid)}
    _wait_for(asked, files, answer_s)
    everyone = dict.fromkeys([*pids, *files])
    return "\n\n".join(_paragraph(pid, files.get(pid), before.get(pid, 0)) for pid in everyone)


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
    return {int(pid): path for path, (pid, started) in headers.items() if _is_alive(int(pid), float(started))}


def _is_alive(pid: int, started: float) -> bool:
    try:
        process = psutil.Process(pid)
        return bool(process.create_time() == started and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _wait_for(before: dict[int, int], files: dict[int, Path], answer_s: float) -> None:
    """Until every file has grown and then kept still, or the time is over."""
    deadline = time.monotonic() + answer_s
    sizes = before
    while time.monotonic() < deadline:
        time.sleep(QUIET_S)
        last, sizes = sizes, {pid: files[pid].stat().st_size for pid in before}
        if sizes == last and all(sizes[pid] > before[pid] for pid in before):
            return


def _paragraph(pid: int, file: Path | None, offset: int) -> str:
    text = file.read_bytes()[offset:].decode(errors="replace").strip() if file else ""
    name = f"{file.stem} " if file else ""
    return f"{name}(pid {pid}): {text or _state(pid)}"


def _state(pid: int) -> str:
    """What the kernel knows of a process that said nothing."""
    try:
        process = psutil.Process(pid)
        return f"no stack; {process.status()}: {' '.join(process.cmdline())}"
    except psutil.NoSuchProcess:
        return "gone"
