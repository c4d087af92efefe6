"""Answers as servers may write them, and in any pieces: the standard library says what they mean."""

import asyncio
import http.client
import io

import pytest

from slime.net import LOOPBACK
from slime_plugin_sglang.driver.connections import BrokenOffError, Connections

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Content-Type: text/event-stream\r\nTransfer-Encoding: Chunked\r\n\r\n"
ANSWERS = {
    "of a length": HEAD + b"date: now\r\ncontent-length: 11\r\n\r\n\r\n{\"a\": 1}\n",
    "empty": HEAD + b"Content-Length:0\r\n\r\n",
    "in chunks": CHUNKED + b"4\r\nab\r\n\r\nA;of=what\r\n0123456789\r\n0\r\n\r\n",
    "in chunks, with a trailer": CHUNKED + b"1\r\nx\r\n0\r\nDigest: none\r\n\r\n",
    "until it closes": b"HTTP/1.1 500 Internal Server Error\r\n\r\nout of memory",
    "of an old server": b"HTTP/1.0 404\r\nContent-Length: 2\r\n\r\nno",
    "of a server that closes": HEAD + b"Connection: Close\r\nContent-Length: 2\r\n\r\nok",
    "without content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "after information": b"HTTP/1.1 102 Processing\r\n\r\n" + HEAD + b"Content-Length: 2\r\n\r\nok",
}  # fmt: skip
CLOSING = ("until it closes", "of an old server", "of a server that closes")


class _Said:
    def __init__(self, said):
        self._said = said

    def makefile(self, _):
        return io.BytesIO(self._said)


def understood(said):
    while (response := http.client.HTTPResponse(_Said(said), method="POST")).begin() is None and response.status < 200:
        said = said.partition(b"\r\n\r\n")[2]
    return response.status, response.read()


async def served(said, use, size=1 << 20):
    """What `use` makes of connections to a server that says this to each request, in pieces, and the number of them."""
    num_connections = 0

    async def serve(reader, writer):
        nonlocal num_connections
        num_connections += 1
        while await reader.readuntil(b"the end") if not reader.at_eof() else b"":
            for start in range(0, len(said), size):
                writer.write(said[start : start + size])
                await writer.drain()
                await asyncio.sleep(0)
            if any(said is ANSWERS.get(name) for name in CLOSING) or said not in ANSWERS.values():
                break
        writer.close()

    def quiet(reader, writer):
        async def run():
            try:
                await serve(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):  # the client is gone
                writer.close()

        return run()

    server = await asyncio.start_server(quiet, LOOPBACK, 0)
    async with server:
        connections = Connections(f"http://{LOOPBACK}:{server.sockets[0].getsockname()[1]}", {"x": "y"}, 2.0)
        try:
            return await use(connections), num_connections
        finally:
            connections.close()


async def in_one(connections):
    async with connections.asking("POST", "/", b"the end") as answer:
        return answer.status, answer.body


async def in_pieces(connections):
    async with connections.asking("POST", "/", b"the end", in_one=False) as answer:
        return answer.status, b"".join([piece async for piece in answer.pieces()])


@pytest.mark.parametrize("size", [1, 5, 1 << 20])
@pytest.mark.parametrize("ask", [in_one, in_pieces])
@pytest.mark.parametrize("name", ANSWERS)
def test_answers_mean_what_the_standard_library_understands(name, ask, size):
    async def twice(connections):
        return [await ask(connections) for _ in range(2)]

    answers, num_connections = asyncio.run(served(ANSWERS[name], twice, size))
    status, body = understood(ANSWERS[name])
    assert answers == [(status, body)] * 2
    assert num_connections == (2 if name in CLOSING else 1)


BROKEN = {
    "nothing": b"",
    "half a head": HEAD,
    "too short": HEAD + b"Content-Length: 5\r\n\r\nabc",
    "half a chunk": CHUNKED + b"5\r\nabc",
    "too long a chunk": CHUNKED + b"3\r\nabcd\r\n",
    "no HTTP": b"SSH-2.0\r\n\r\n",
    "no size": CHUNKED + b"x\r\n",
    "endless": HEAD + b"x" * 70_000,
}


@pytest.mark.parametrize("said", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("ask", [in_one, in_pieces])
def test_what_is_no_whole_answer_is_an_error(said, ask):
    with pytest.raises(BrokenOffError):
        asyncio.run(served(said, ask))


def test_who_leaves_early_closes_the_connection():
    async def leave(connections):
        for _ in range(2):
            async with connections.asking("POST", "/", b"the end", in_one=False) as answer:
                assert answer.status == 200

    _, num_connections = asyncio.run(served(BROKEN["too short"], leave))
    assert num_connections == 2
