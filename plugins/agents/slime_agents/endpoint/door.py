"""The endpoint's door: limits of connections that have shown no key of an attempt, and how they are closed."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

HEAD_S = 20.0
"""Seconds in which a connection has to show a key. One that has may be silent as long as its attempt lasts."""
MAX_STRANGERS = 256
"""Connections without a key at a time; with one more the oldest is closed. An eighth of the process's open files at
most, and all connections together half of them: files, engines and trackers need the others."""
MAX_HEADERS, READ_BYTES = 64, 2**16
LINGER_S = 2.0
"""Seconds for which a connection that was sent away stays open, so that its client reads why while it still sends."""
CLOSING_S = 1.0
"""Seconds in which a client may still read what it was answered, once there are no more attempts."""
_BACKLOG, _ACCEPTS = 2048, 32
"""Connections that may wait in the kernel, and those accepted at once: the event loop has other things to do."""
log = logging.getLogger(__name__)
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Connection(web.RequestHandler):
    """A connection. Bodies are read as they come: what is compressed stays so."""

    __slots__ = ("_door", "is_turned_away")

    def __init__(self, door: Door) -> None:
        super().__init__(
            door, loop=asyncio.get_running_loop(), access_log=None, auto_decompress=False,  # type: ignore[arg-type]
            max_headers=MAX_HEADERS, read_bufsize=READ_BYTES, lingering_time=LINGER_S,
        )  # fmt: skip
        self._door, self.is_turned_away = door, False

    def turn_away(self) -> None:
        """Read nothing more. It is closed a little later."""
        self.is_turned_away = True
        if self.transport:
            self.transport.pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        if not self.is_turned_away:
            super().resume_reading(resume_parser)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer and count what is no HTTP: anybody may send it, so it has no place in the run's log."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        self._door.num_malformed += 1
        response = web.Response(status=HTTPStatus.BAD_REQUEST, text="this is not an HTTP request\n")
        response.force_close()
        return response


class Door(web.Server):
    """Listens, and tells connections that have shown a key from those of strangers.

    Args:
        handler: answers requests. It calls `admit` before it reads a body.

    Attributes:
        num_malformed, num_dropped: requests that were no HTTP, and connections closed because they showed no key.
    """

    def __init__(self, handler: Handler) -> None:
        super().__init__(handler)
        self._strangers: dict[Connection, float] = {}
        self._known: dict[Connection, str] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        files = 2**20 if files == resource.RLIM_INFINITY else files
        self._max_open, self._max_strangers = files // 2, max(1, min(MAX_STRANGERS, files // 8))
        self.num_malformed = self.num_dropped = 0

    async def open(self, host: str) -> int:
        """Listen at a free port of an address, which is returned. Raises OSError: the address cannot be had."""
        loop = asyncio.get_running_loop()
        family, _, _, _, address = (await loop.getaddrinfo(host, 0, type=socket.SOCK_STREAM))[0]
        listening = socket.create_server(address[:2], family=family)
        self._server = await loop.create_server(self, sock=listening, backlog=_ACCEPTS)
        listening.listen(_BACKLOG)  # asyncio takes one number for both
        return int(listening.getsockname()[1])

    async def close(self) -> None:
        """End all connections; those that are being answered a little later."""
        if self._server:
            self._server.close()
        await asyncio.sleep(0)  # what has come in until now is begun
        self.pre_shutdown()
        await self.shutdown(CLOSING_S)

    def tell(self) -> None:
        if self.num_malformed or self.num_dropped:
            log.warning(
                "The endpoint closed %d connections that showed no key of an attempt, and refused %d requests that are "
                "no HTTP. Agents do neither: see who else reaches rollout.program.options.host.",
                self.num_dropped, self.num_malformed,
            )  # fmt: skip

    def admit(self, connection: Connection, key: str) -> None:
        self._strangers.pop(connection, None)
        self._known[connection] = key

    def forget(self, key: str) -> None:
        """Have the connections of an attempt that has ended show another key."""
        for connection in [each for each, shown in self._known.items() if shown == key]:
            del self._known[connection]
            self._strangers[connection] = asyncio.get_running_loop().time()
        self._make_room()

    def __call__(self) -> Connection:
        return Connection(self)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        assert isinstance(handler, Connection), "it was made above"
        self._strangers[handler] = asyncio.get_running_loop().time()
        self._make_room()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._strangers.pop(handler, None)  # type: ignore[call-overload]
        self._known.pop(handler, None)  # type: ignore[call-overload]

    def _make_room(self) -> None:
        while self._strangers and (
            len(self._strangers) > self._max_strangers or len(self._strangers) + len(self._known) > self._max_open
        ):
            self._drop(next(iter(self._strangers)))
        if self._strangers and self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(HEAD_S / 10, self._sweep)

    def _sweep(self) -> None:
        self._sweeping, now = None, asyncio.get_running_loop().time()
        while self._strangers and now - self._strangers[oldest := next(iter(self._strangers))] > HEAD_S:
            self._drop(oldest)
        self._make_room()

    def _drop(self, connection: Connection) -> None:
        del self._strangers[connection]
        transport: Any = connection.transport
        if transport:
            self.num_dropped += 1
            transport.abort()
