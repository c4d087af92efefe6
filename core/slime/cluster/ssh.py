"""Ray or torchrun on the other hosts of a hostfile, by a session of ssh each, which is also what it lives by.

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

from slime.cluster.host import Order
from slime.cluster.placement import HOST_LABEL
from slime.cluster.watch import Death
from slime.errors import SlimeError

COMMAND = ("ssh", "-T", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
KEEP_ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")
"""A host that is silent for a minute is gone, as for Ray itself."""
POLL_S = 0.2
OTHERS_S = 20.0
"""Seconds that the other hosts get to fail too, once one has: all of them are named at once."""
END_S = 15.0
"""Seconds from the end of standard input to that of a session."""
NOT_CONNECTED, NOT_FOUND = 255, (126, 127)
"""Exit codes of ssh that are its own, and those of a shell that finds no command."""
LOG_BYTES, LOG_CHARACTERS = 1 << 12, 300


@dataclass
class Session:
    """What runs on the host of line `number`."""

    name: str
    number: int
    log: Path
    process: subprocess.Popen[bytes]

    def end(self) -> str:
        """How it ended, with its last line; empty while it lasts."""
        code = self.process.poll()
        if code is None:
            return ""
        with self.log.open("rb") as file:
            file.seek(max(self.log.stat().st_size - LOG_BYTES, 0))
            lines = file.read().decode(errors="replace").split("\n")
        told = next((line.strip() for line in reversed(lines) if line.strip()), "")[-LOG_CHARACTERS:]
        return f"its session of ssh ended with exit code {code}" + (f" ({told.rstrip('.')})" if told else "")

    def todo(self) -> str:
        if self.process.returncode == NOT_CONNECTED:
            return f"Have 'ssh {self.name}' work without a password."
        if self.process.returncode in NOT_FOUND:
            return f"Install slime there under the same path ({sys.prefix})."
        return f"Read {self.log}."


class Sessions:
    """Those of a run or a conversion; none without a hostfile."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._sessions = sessions

    def fault(self, what: str, *, may_end: bool = False) -> Death | None:
        """The first host that was lost, or None.

        Args:
            what: the run does.
            may_end: what runs there may end well before this one.
        """
        for session in self._sessions:
            if (end := session.end()) and not (may_end and session.process.returncode == 0):
                todo = f"Read {session.log}, see to the host, then start the same command again to resume."
                return Death(f"the host was lost while {what}: {end}", where=f"host {session.name}", todo=todo)
        return None

    def wait_joined(self, timeout_s: float) -> None:
        """Wait until Ray knows every host.

        Raises:
            SlimeError: hosts that failed, or were not there in time; each is named.
        """
        deadline = time.monotonic() + timeout_s
        while missing := self._missing():
            ended = [session for session in missing if session.end()]
            if ended:
                deadline = min(deadline, time.monotonic() + OTHERS_S)
            if len(ended) == len(missing) or time.monotonic() > deadline:
                raise _did_not_join(missing)
            time.sleep(POLL_S)

    def _missing(self) -> list[Session]:
        import ray

        joined = {node["Labels"].get(HOST_LABEL) for node in ray.nodes() if node["Alive"]}
        return [session for session in self._sessions if str(session.number) not in joined or session.end()]

    def close(self) -> None:
        """End what runs on every host."""
        for session in self._sessions:
            assert session.process.stdin
            with contextlib.suppress(BrokenPipeError):
                session.process.stdin.close()
        deadline = time.monotonic() + END_S
        for session in self._sessions:
            try:
                session.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                session.process.kill()
                session.process.wait()


def _did_not_join(missing: Sequence[Session]) -> SlimeError:
    facts = {session.name: session.end() or "did not join in time" for session in missing}
    todo = " ".join(dict.fromkeys(session.todo() for session in missing))
    return SlimeError("; ".join(f"{name}: {fact}" for name, fact in facts.items()), where="cluster.hostfile", todo=todo)


@contextlib.contextmanager
def sessions(orders: Mapping[str, Order], logs: Path) -> Iterator[Sessions]:
    """Have each host's order carried out there until the block ends, or this process.

    Args:
        orders: by address.
        logs: folder for what they print, `ray-<host>.log`.
    """
    if orders and not shutil.which("ssh"):
        todo = "Install OpenSSH's client, or start Ray yourself and set cluster.ray_address."
        raise SlimeError("there is no ssh on this host", where="cluster.hostfile", todo=todo)
    opened: list[Session] = []
    running = Sessions(opened)
    try:
        for name, order in orders.items():
            opened.append(_open(name, order, logs / f"ray-{name.replace('/', '_')}.log"))  # ssh://host:port
        yield running
    finally:
        running.close()


def _open(name: str, order: Order, log: Path) -> Session:
    remote = shlex.join(["exec", sys.executable, "-P", "-m", "slime.cluster.host"])
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
