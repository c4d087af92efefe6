"""The least that an endpoint's request costs in Python: servers that hand it on to an engine, and do nothing else.

    python benchmarks/http_floor.py [--conversations N]

The client, the engine, the sizes and the three processes are those of `benchmarks/endpoint.py`. In between stands
aiohttp's server, or a protocol of twenty lines that understands nothing else; it asks nobody, or as slime does, by
aiohttp's client; in Python's event loop and in uvloop's. Counted is the processor time of the process in between.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import uvloop
from aiohttp import web

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
ENDPOINT = str(ROOT / "benchmarks" / "endpoint.py")
TURNS = 8
WARM = 20
REPLY = orjson.dumps({"choices": [{"message": {"role": "assistant", "content": "It is so. " * 50}}]})
Ask = Callable[[bytes], Awaitable[bytes]]


async def nobody(_: bytes) -> bytes:
    return b"{}"


def by_aiohttp(url: str) -> Ask:
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def ask(body: bytes) -> bytes:
        async with session.post(url + "/generate", data=body) as response:
            return await response.read()

    return ask


async def answered(ask: Ask, body: bytes) -> bytes:
    tokens = 250 * len(orjson.loads(body)["messages"])
    orjson.loads(await ask(orjson.dumps({"input_ids": list(range(100_000, 100_000 + tokens))})))
    return REPLY


async def serve_aiohttp(ask: Ask) -> int:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=await answered(ask, await request.read()), content_type="application/json")

    app = web.Application(client_max_size=0)
    app.router.add_post("/{key}/v1/chat/completions", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port: int = runner.addresses[0][1]
    return port


class Bare(asyncio.Protocol):
    ask: Ask
    _transport: Any

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._data = transport, b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if end and len(body) == int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]):
            self._data = b""
            self._task = asyncio.ensure_future(self._answer(body))

    async def _answer(self, body: bytes) -> None:
        said = await answered(self.ask, body)
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said))


async def serve_bare(ask: Ask) -> int:
    made = type("Made", (Bare,), {"ask": staticmethod(ask)})
    server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    return port


async def measure(serve: Callable[[Ask], Awaitable[int]], ask: Ask, num: int) -> tuple[float, float]:
    """Milliseconds of a request: of the processor, and in the median of the client's clock."""
    port, spent, said = await serve(ask), 0.0, b""
    for numbers in (range(WARM), range(WARM, WARM + num)):
        client = await asyncio.create_subprocess_exec(
            sys.executable, ENDPOINT, "--client", f"http://127.0.0.1:{port}/key/v1",
            str(numbers.start), str(numbers.stop), str(TURNS), stdout=subprocess.PIPE,
        )  # fmt: skip
        began = time.process_time()
        said, _ = await client.communicate()
        spent = time.process_time() - began
    return 1000 * spent / num / TURNS, 1000 * statistics.median(json.loads(said))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=60)
    num = parser.parse_args().conversations
    command = [sys.executable, ENDPOINT, "--engine", json.dumps(list(range(200)))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout, "it is a pipe"
        url = engine.stdout.readline().strip()

        async def one(serve: Callable[[Ask], Awaitable[int]], make: Callable[[str], Ask]) -> tuple[float, float]:
            return await measure(serve, make(url), num)

        for serve, server in ((serve_aiohttp, "aiohttp"), (serve_bare, "bare")):
            for make, asks in ((lambda _: nobody, "nobody"), (by_aiohttp, "by aiohttp")):
                for loop in (asyncio.new_event_loop, uvloop.new_event_loop):
                    with asyncio.Runner(loop_factory=loop) as runner:
                        spent, median = runner.run(one(serve, make))
                    name = f"{server}, asks {asks}, {loop.__module__.partition('.')[0]}"
                    print(f"{name:<42}{spent:7.3f} ms, p50 {median:7.3f} ms", flush=True)
        engine.terminate()


if __name__ == "__main__":
    main()
