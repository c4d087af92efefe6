"""Pickled messages with a length before them, over the socket between the service and one worker."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!Q")


def frame(message: Any) -> bytes:
    """The bytes of one message."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def receive(sock: socket.socket) -> Any:
    """Wait for one message; EOFError when the other side is gone, TimeoutError past the socket's own limit."""
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
    return pickle.loads(_exactly(sock, length))


async def receive_async(sock: socket.socket) -> Any:
    """As `receive`, for a non-blocking socket inside an event loop."""
    (length,) = _LENGTH.unpack(await _exactly_async(sock, _LENGTH.size))
    return pickle.loads(await _exactly_async(sock, length))


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        _extend(data, sock.recv(count - len(data)))
    return bytes(data)


async def _exactly_async(sock: socket.socket, count: int) -> bytes:
    data, loop = bytearray(), asyncio.get_running_loop()
    while len(data) < count:
        _extend(data, await loop.sock_recv(sock, count - len(data)))
    return bytes(data)


def _extend(data: bytearray, chunk: bytes) -> None:
    if not chunk:
        raise EOFError("the other side closed the connection")
    data += chunk
