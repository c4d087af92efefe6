"""Addresses, ports, and who may use them."""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import FileStore, TCPStore  # type: ignore[attr-defined]

LOOPBACK = "127.0.0.1"
"""The address of servers of a run that is on one host alone."""
LOOPBACK_SETTINGS = MappingProxyType({"GLOO_SOCKET_IFNAME": "lo"})
"""Environment that has torch's process groups listen there too; a user's own comes first."""


class Secret(str):
    """A text of which `repr` shows asterisks, as where SGLang prints its arguments."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def new_key() -> Secret:
    """A random key of 256 bits, for a run's requests to its own engines."""
    return Secret(secrets.token_hex(32))


@dataclass(frozen=True)
class Endpoint:
    """The address of an engine."""

    url: str  # `http://host:port`
    key: Secret  # requests must carry it; the server refuses all others

    def __str__(self) -> str:
        return self.url

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers of every request."""
        return {"Authorization": f"Bearer {self.key!s}"}


def hand_over(key: Secret, process: subprocess.Popen[bytes]) -> None:
    """Tell a server its key through its standard input, as others can read arguments and environment."""
    assert process.stdin
    with suppress(BrokenPipeError), process.stdin as pipe:  # one that has ended says why in its log
        pipe.write(key.encode() + b"\n")


def take_key() -> Secret:
    """The server's end of `hand_over`."""
    return Secret(sys.stdin.readline().strip())


@contextmanager
def reserved_port(host: str, num_following: int = 0) -> Iterator[int]:
    """A TCP port at `host`, and as many as follow it, that the kernel gives nobody while the context lasts, but that a
    server may listen on: Linux lets a second socket bind and listen as long as both allow reuse and the first does not
    listen."""
    with ExitStack() as holders:
        port = _hold(holders, host, 0)
        while not all(_hold(holders, host, port + 1 + following) for following in range(num_following)):
            holders.close()
            port = _hold(holders, host, 0)
        yield port


def _hold(holders: ExitStack, host: str, port: int) -> int:
    """The port, or where that is 0 any; 0 if it is not free."""
    holder = holders.enter_context(socket.socket())
    try:
        holder.bind((host, port))
    except (OSError, OverflowError):  # taken, or beyond the last
        if not port:
            raise
        return 0
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # only now: two holders are not to share it
    return int(holder.getsockname()[1])


def serve_store(host: str, port: int = 0, timeout: timedelta = timedelta(minutes=5)) -> TCPStore:
    """torch's key-value store, at `host` and not on every interface as by default (0: at a free port); it has no
    authentication."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    listener = socket.create_server((host, port), backlog=socket.SOMAXCONN)
    port = int(listener.getsockname()[1])
    return TCPStore(
        host, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=listener.detach()
    )


def file_store(path: str, timeout: timedelta) -> FileStore:
    """A store in a file, for processes of one host: those that may open the file may join."""
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    store = FileStore(path)
    store.set_timeout(timeout)
    return store


def join_store(host: str, port: int, timeout: timedelta) -> TCPStore:
    """The store of `serve_store` in another process."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)
