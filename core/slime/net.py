"""Ports: found, never assumed."""

from __future__ import annotations

import socket


def free_port(host: str) -> int:
    """A TCP port that is free at `host` now."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])
