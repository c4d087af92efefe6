"""Where the processes of an engine over several hosts find each other."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from slime.engines.scratch import scratch_prefix
from slime.net import LOOPBACK, reserved_port

NUM_FOLLOWING = 6
"""Ports that data-parallel attention counts from the one it is told (SGLang's `PortArgs.init_new`)."""


@dataclass(frozen=True)
class Rendezvous:
    """Of one engine, the same for all its processes.

    Attributes:
        address: `host:port` of the first, SGLang's `dist_init_addr`.
        file: in which torch's ranks meet instead of there; empty where they have no file in common.
    """

    address: str
    file: str = ""


@contextmanager
def open_rendezvous(host: str, mark: str) -> Iterator[Rendezvous]:
    """At the address `host` of the first process; its ports are nobody else's while the context lasts.

    On one host ranks meet in a file: torch's store would listen on every interface, and ask nobody who he is.

    Args:
        mark: of the run, in the name of the file's folder.
    """
    with reserved_port(host, NUM_FOLLOWING) as port:
        address = f"{host}:{port}"
        if host != LOOPBACK:
            yield Rendezvous(address)
            return
        folder = tempfile.mkdtemp(prefix=scratch_prefix(mark))
        try:
            yield Rendezvous(address, f"{folder}/ranks")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
