"""HTTP/1.1 to one server, over connections that are kept for a while: as much of it as requests to engines need.

A client for everything, aiohttp's, takes 0.12 to 0.16 ms of the processor for a request, and this one 0.01 to 0.05:
there are several layers less (`benchmarks/results/generation-cpu.md`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import cast
from urllib.parse import urlsplit

_LONGEST = 1 << 16
"""Bytes of a head, or of a line between chunks."""
_INFORMATION, _WITHOUT_BODY = range(100, 200), (204, 304)


class BrokenOffError(ConnectionError):
    """A connection ended before the answer did, or what came was no HTTP."""


class Connection(asyncio.Protocol):
    """One connection, for one request at a time.

    Attributes:
        status: of the answer; 0 before its head is there.
        may_be_kept: whether another request may follow.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._data, self._pieces = bytearray(), list[bytes]()
        self._read: Callable[[], bool] = self._read_head
        self._left = 0
        self._error: BrokenOffError | None = None
        self._wake: asyncio.Future[None] | None = None
        self._is_chunked = self._in_one = self._is_whole = False
        self.status, self.may_be_kept = 0, True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are of no such class

    def ask(self, request: bytes, *, in_one: bool) -> None:
        """Send a request, head and body.

        Args:
            in_one: wait for the whole answer, not for pieces of it.
        """
        assert self._transport, "it is connected"
        self.status, self._in_one, self._is_whole, self._read = 0, in_one, False, self._read_head
        self._pieces.clear()
        self._transport.write(request)

    async def answered(self) -> None:
        """Until the head of the answer is there, or all of it if it is wanted in one.

        Raises:
            BrokenOffError: it does not come.
        """
        while not self._is_whole and (self._in_one or not self.status):
            await self._more()

    @property
    def body(self) -> bytes:
        """Of a whole answer."""
        return b"".join(self._pieces)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives.

        Raises:
            BrokenOffError: a part is missing.
        """
        while True:
            if self._pieces:
                piece = self.body
                self._pieces.clear()
                yield piece
            elif self._is_whole:
                return
            else:
                await self._more()

    async def _more(self) -> None:
        if self._error:
            raise self._error
        self._wake = asyncio.get_running_loop().create_future()
        await self._wake

    @property
    def is_idle(self) -> bool:
        """Whether the answer has ended and another request may follow."""
        return self._is_whole and self.may_be_kept and not self._error

    def close(self) -> None:
        """The server learns that nobody waits any more."""
        assert self._transport, "it is connected"
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_whole:  # nobody has asked for anything
            self._break_off("the server says something without being asked")
            self.close()
            return
        self._data += data
        try:
            while not self._is_whole and self._read():
                pass
        except (ValueError, IndexError):
            self._break_off("the server does not speak HTTP/1.1")
            self.close()
            return
        if self._is_whole or (self.status and not self._in_one):
            self._wake_up()

    def connection_lost(self, error: Exception | None) -> None:
        if self.status and not self._is_whole and self._read == self._read_rest:
            self._is_whole = True
        self.may_be_kept = False
        self._break_off(str(error or "the server has closed the connection"))

    def _break_off(self, why: str) -> None:
        self._error = self._error or BrokenOffError(why)
        self._wake_up()

    def _wake_up(self) -> None:
        if self._wake and not self._wake.done():
            if self._error and not self._is_whole:
                self._wake.set_exception(self._error)
            else:
                self._wake.set_result(None)

    # What is read next; each says whether there was enough of it.

    def _read_head(self) -> bool:
        head = self._line(b"\r\n\r\n")
        if head is None:
            return False
        first, *lines = head.split(b"\r\n")
        version, status = first.split(maxsplit=2)[:2]
        if not version.startswith(b"HTTP/1."):
            raise ValueError(version)
        if int(status) in _INFORMATION:
            return True
        fields = dict[bytes, bytes]()
        for line in lines:
            name, _, value = line.partition(b":")
            fields[name.lower()] = value.strip().lower()
        self.status = int(status)
        self.may_be_kept = version == b"HTTP/1.1" and fields.get(b"connection") != b"close"
        self._is_chunked = fields.get(b"transfer-encoding", b"").endswith(b"chunked")
        length = fields.get(b"content-length")
        if self.status in _WITHOUT_BODY:
            self._is_whole = True
        elif self._is_chunked:
            self._read = self._read_size
        elif length is not None:
            self._left, self._read = int(length), self._read_body
            self._is_whole = not self._left
        else:
            self._read, self.may_be_kept = self._read_rest, False
        return True

    def _read_body(self) -> bool:
        if not self._data:
            return False
        piece = bytes(self._data[: self._left])
        del self._data[: self._left]
        self._pieces.append(piece)
        self._left -= len(piece)
        if not self._left:
            self._read, self._is_whole = self._read_gap, not self._is_chunked
        return True

    def _read_size(self) -> bool:
        line = self._line(b"\r\n")
        if line is None:
            return False
        self._left = int(line.partition(b";")[0], 16)
        self._read = self._read_body if self._left else self._read_trailer
        return True

    def _read_gap(self) -> bool:
        line = self._line(b"\r\n")
        if line is None:
            return False
        if line:
            raise ValueError(line)
        self._read = self._read_size
        return True

    def _read_trailer(self) -> bool:
        line = self._line(b"\r\n")
        self._is_whole = line == b""
        return line is not None

    def _read_rest(self) -> bool:
        self._pieces.append(bytes(self._data))
        self._data.clear()
        return False

    def _line(self, end: bytes) -> bytes | None:
        """What stands before `end`, with it taken away; None: it is not there yet."""
        place = self._data.find(end)
        if place < 0:
            if len(self._data) > _LONGEST:
                raise ValueError("a line without an end")
            return None
        line = bytes(self._data[:place])
        del self._data[: place + len(end)]
        return line


class Connections:
    """To one server.

    Args:
        url: `http://host:port`.
        headers: of every request.
        kept_s: seconds that an idle one is kept for the next request.
    """

    def __init__(self, url: str, headers: Mapping[str, str], kept_s: float) -> None:
        parts = urlsplit(url)
        self._host, self._is_secret = parts.hostname or "", parts.scheme == "https"
        self._port = parts.port or (443 if self._is_secret else 80)
        lines = {"Host": parts.netloc.rpartition("@")[2], **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode()
        self._kept_s = kept_s
        self._idle: list[tuple[float, Connection]] = []
        self._sweep: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def asking(
        self, method: str, path: str, body: bytes | None, *, in_one: bool = True
    ) -> AsyncIterator[Connection]:
        """The connection on which the server answers, once it does. Who leaves before the end of the answer closes it.

        Raises:
            OSError: nobody listens there, or the connection broke off. One that was idle may have been closed by the
                server in the moment in which it was taken: then the request is sent once more, on a new one.
        """
        connection = await self.begin(method, path, body, in_one=in_one)
        try:
            yield connection
        finally:
            self.give_back(connection)

    async def begin(self, method: str, path: str, body: bytes | None, *, in_one: bool = True) -> Connection:
        """The same, for who gives the connection back."""
        about = b"" if body is None else b"Content-Type: application/json\r\n"
        if method != "GET":
            about += b"Content-Length: %d\r\n" % len(body or b"")
        request = b"%s %s HTTP/1.1\r\n%s%s\r\n%s" % (method.encode(), path.encode(), self._head, about, body or b"")
        if connection := self._take():
            try:
                return await self._answered(connection, request, in_one)
            except BrokenOffError:
                if connection.status:
                    raise
        return await self._answered(await self._connect(), request, in_one)

    async def _answered(self, connection: Connection, request: bytes, in_one: bool) -> Connection:
        connection.ask(request, in_one=in_one)
        try:
            await connection.answered()
        except BaseException:
            connection.close()
            raise
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next request, or close it in the midst of an answer."""
        if not connection.is_idle:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        self._idle.append((loop.time(), connection))
        self._sweep = self._sweep or loop.call_later(self._kept_s, self._close_old)

    def close(self) -> None:
        """Keep no connection."""
        if self._sweep:
            self._sweep.cancel()
        for _, connection in self._idle:
            connection.close()
        self._idle.clear()

    def _take(self) -> Connection | None:
        """The connection that was used last: the others grow old."""
        while self._idle:
            _, connection = self._idle.pop()
            if connection.is_idle:
                return connection
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                Connection, self._host, self._port, ssl=self._is_secret or None
            )
        except OSError as error:
            raise ConnectionError(f"cannot connect to {self._host}:{self._port}: {error}") from error
        return connection

    def _close_old(self) -> None:
        loop = asyncio.get_running_loop()
        old = loop.time() - self._kept_s
        while self._idle and self._idle[0][0] <= old:
            self._idle.pop(0)[1].close()
        self._sweep = loop.call_at(self._idle[0][0] + self._kept_s, self._close_old) if self._idle else None
