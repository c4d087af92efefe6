"""Ray or torchrun on the other hosts of a hostfile, by a session of ssh each, with which it ends.

The client is the user's own `ssh`: names, users, ports, keys and jumps of `~/.ssh/config` count.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slime.errors import SlimeError
from slime.topology.launcher import Order

COMMAND = ("ssh", "-T", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
KEEP_ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")
"""A host that is silent for a minute is gone, as for Ray itself."""
END_S = 15.0
"""Seconds from the end of standard input to that of a session."""
NOT_CONNECTED, NOT_FOUND = 255, (126, 127)
"""Exit codes of ssh that are its own, and those of a shell that finds no command."""
LOG_BYTES, LOG_CHARACTERS = 1 << 12, 300


@dataclass
class Session:
    """A session on the host of line `number`."""

    name: str
    number: int
    log: Path
    process: subprocess.Popen[bytes]

    def end(self) -> str:
        """Its end, with its last line that is no INFO of Ray's; empty while it lasts."""
        code = self.process.poll()
        if code is None:
            return ""
        with self.log.open("rb") as file:
            file.seek(max(self.log.stat().st_size - LOG_BYTES, 0))
            lines = [line.strip() for line in file.read().decode(errors="replace").split("\n") if "\tINFO " not in line]
        told = next(filter(None, reversed(lines)), "")[-LOG_CHARACTERS:]
        return f"its session of ssh ended with exit code {code}" + (f" ({told.rstrip('.')})" if told else "")

    def succeeded(self) -> bool:
        return self.process.poll() == 0

    def todo(self) -> str:
        if self.process.returncode == NOT_CONNECTED:
            return f"Have 'ssh {self.name}' work without a password."
        if self.process.returncode in NOT_FOUND:
            return f"Install slime and slime-cluster there under the same path ({sys.prefix})."
        return f"Read {self.log}."


@contextlib.contextmanager
def sessions(orders: Mapping[str, Order], logs: Path) -> Iterator[Sequence[Session]]:
    """Have each host's order, by address, carried out there until the block ends, or this process. What they print goes
    to `ray-<host>.log` in `logs`."""
    if orders and not shutil.which("ssh"):
        todo = "Install OpenSSH's client, or start Ray yourself and set cluster.ray_address."
        raise SlimeError("there is no ssh on this host", where="cluster.hostfile", todo=todo)
    opened: list[Session] = []
    try:
        for name, order in orders.items():
            opened.append(_open(name, order, logs / f"ray-{name.replace('/', '_')}.log"))  # ssh://host:port
        yield opened
    finally:
        _close(opened)


def _open(name: str, order: Order, log: Path) -> Session:
    remote = shlex.join(["exec", sys.executable, "-P", "-m", "slime_cluster.ssh.host"])
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*COMMAND, *KEEP_ALIVE, "--", name, remote],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C reaches the driver alone, which then ends them in order
        )
    assert process.stdin
    with contextlib.suppress(BrokenPipeError):  # one that has ended says why in its log
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
    return Session(name, order["number"], log, process)


def _close(sessions: Sequence[Session]) -> None:
    for session in sessions:
        assert session.process.stdin
        with contextlib.suppress(BrokenPipeError):
            session.process.stdin.close()
    deadline = time.monotonic() + END_S
    for session in sessions:
        try:
            session.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            session.process.kill()
            session.process.wait()
