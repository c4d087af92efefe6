"""What strangers and clients can do to the endpoint: `python benchmarks/endpoint_load.py [--only WORD]`.

The endpoint runs as in a run's driver, with the model of its tests in place of engines. A process of its own sends each
load; another one asks an honest question every 50 ms meanwhile, on a new connection each time. What is measured in the
endpoint's process: by how much its memory grew at most; the longest time between two turns of its event loop; and the
processor time that it took itself in such a time, for on a busy machine others have the processor meanwhile. Linux.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import resource
import selectors
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))
TICK_S, EVERY_S, MOST_S = 0.002, 0.05, 60.0
"""Between two looks at the event loop; between two honest questions; of a load."""
HELD_S = 5.0
"""For which silent connections are held, and slow bodies sent."""
MB = 10**6
QUESTION = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()


def sent(address: tuple[str, int], head: str, parts: Iterator[bytes]) -> str:
    """The status of the answer to a request, or how the connection ended."""
    with socket.create_connection(address, timeout=MOST_S) as connection:
        with suppress(ConnectionError):  # the answer may come before the end of the body
            connection.sendall(head.encode())
            for part in parts:
                connection.sendall(part)
        try:
            line = connection.recv(4096).partition(b"\r\n")[0].decode("latin1")
        except (ConnectionError, TimeoutError) as error:
            return type(error).__name__
    return line.split(" ")[1] if " " in line else "closed"


def asking(path: str, *headers: str) -> str:
    return "\r\n".join([f"POST {path}/chat/completions HTTP/1.1", "Host: x", *headers, "", ""])


def zeros(size: int) -> Iterator[bytes]:
    return (bytes(MB) for _ in range(size // MB))


def whole(address: tuple[str, int], path: str, size: int) -> Counter[str]:
    return Counter([sent(address, asking(path, f"Content-Length: {size}"), zeros(size))])


def chunked(address: tuple[str, int], path: str, size: int) -> Counter[str]:
    parts = (b"%x\r\n%b\r\n" % (len(part), part) for part in zeros(size))
    return Counter([sent(address, asking(path, "Transfer-Encoding: chunked"), chain(parts, [b"0\r\n\r\n"]))])


def zipped(address: tuple[str, int], path: str, size: int) -> Counter[str]:
    packer = zlib.compressobj(9, wbits=31)
    body = b"".join([*map(packer.compress, zeros(size)), packer.flush()])
    head = asking(path, f"Content-Length: {len(body)}", "Content-Encoding: gzip")
    return Counter([sent(address, head, iter([body]))])


def silent(address: tuple[str, int], path: str, number: int) -> Counter[str]:
    """Connections that say nothing, or half a line."""
    held, said = [], Counter[str]()
    for each in range(number):
        try:
            connection = socket.create_connection(address, timeout=5.0)
            held.append(connection)
            if each % 2:
                connection.sendall(b"POST /v1/chat")
        except OSError as error:
            said[type(error).__name__] += 1
    time.sleep(HELD_S)
    for connection in held:
        connection.setblocking(False)
        try:
            said["closed"] += connection.recv(1) == b""
        except BlockingIOError:
            said["open"] += 1
        except ConnectionError:
            said["closed"] += 1
        connection.close()
    return said


def of_messages(address: tuple[str, int], path: str, number: int) -> Counter[str]:
    return told(address, path, {"messages": [{"role": "user", "content": "hello to you"}] * number})


def of_text(address: tuple[str, int], path: str, size: int) -> Counter[str]:
    return told(address, path, {"messages": [{"role": "user", "content": "hello to you. " * (size // 14)}]})


def told(address: tuple[str, int], path: str, value: Any) -> Counter[str]:
    body = json.dumps(value).encode()
    return Counter([sent(address, asking(path, f"Content-Length: {len(body)}"), iter([body]))])


def slow(address: tuple[str, int], path: str, number: int) -> Counter[str]:
    """Bodies of 100,000 bytes, of which one comes a second."""
    chosen, said = selectors.DefaultSelector(), Counter[str]()
    held = [socket.create_connection(address) for _ in range(number)]
    for connection in held:
        connection.sendall(asking(path, "Content-Length: 100000").encode())
        chosen.register(connection, selectors.EVENT_READ)
    end = time.monotonic() + HELD_S
    while time.monotonic() < end:
        for connection in held:
            with suppress(OSError):
                connection.send(b" ")
        time.sleep(1.0)
    for key, _ in chosen.select(0):
        with suppress(OSError):
            said[key.fileobj.recv(4096)[9:12].decode() or "closed"] += 1  # type: ignore[union-attr]
    said["open"] = number - said.total()
    return said


def malformed(address: tuple[str, int], path: str, number: int) -> Counter[str]:
    lines = [
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 3000 + b"\r\n",
    ]
    return Counter(sent(address, "", iter([lines[each % len(lines)]])) for each in range(number))


Load = Callable[[tuple[str, int], str, int], Counter[str]]
LOADS: dict[str, tuple[Load | None, bool, int]] = {
    "nothing": (None, False, 0),
    "400 MB, no key": (whole, False, 400 * MB),
    "400 MB in chunks, no key": (chunked, False, 400 * MB),
    "gzip of 2 GB, no key": (zipped, False, 2000 * MB),
    "500 requests that are no HTTP": (malformed, False, 500),
    "2,000 silent connections": (silent, False, 2000),
    "10,000 silent connections": (silent, False, 10_000),
    "400 MB, with a key": (whole, True, 400 * MB),
    "400 MB in chunks, with a key": (chunked, True, 400 * MB),
    "gzip of 2 GB, with a key": (zipped, True, 2000 * MB),
    "200,000 messages, with a key": (of_messages, True, 200_000),
    "4,000 messages, with a key": (of_messages, True, 4000),
    "a text of 15 MB, with a key": (of_text, True, 15 * MB),
    "a text of 250,000 characters, with a key": (of_text, True, 250_000),
    "200 slow bodies, with a key": (slow, True, 200),
}
"""What is done, whether with a key, and how much."""


def ask_honestly(url: str) -> list[float]:
    """Seconds of each answer, until standard input ends."""
    parts, taken = urlsplit(url), list[float]()
    head = asking(parts.path, f"Content-Length: {len(QUESTION)}", "Connection: close").encode()
    chosen = selectors.DefaultSelector()
    chosen.register(sys.stdin, selectors.EVENT_READ)
    while not chosen.select(EVERY_S):
        began = time.perf_counter()
        with socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=MOST_S) as connection:
            connection.sendall(head + QUESTION)
            answer = b""
            while part := connection.recv(2**16):
                answer += part
        assert b" 200 OK" in answer, answer[:200]
        taken.append(time.perf_counter() - began)
    return taken


class Watch:
    """Of this process's event loop and memory."""

    def __init__(self) -> None:
        self.stall_s = self.own_s = 0.0
        Path("/proc/self/clear_refs").write_text("5")  # so that the peak is that from now on
        self._before = _status("VmRSS")
        self._task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        last, used = time.perf_counter(), time.process_time()
        while True:
            await asyncio.sleep(TICK_S)
            now, uses = time.perf_counter(), time.process_time()
            self.stall_s, self.own_s = max(self.stall_s, now - last - TICK_S), max(self.own_s, uses - used)
            last, used = now, uses

    def end(self) -> float:
        """MB by which the memory grew at most."""
        self._task.cancel()
        return (_status("VmHWM") - self._before) * 1024 / MB


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


class Tracebacks(logging.Handler):
    """Counts them."""

    number = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.number += bool(record.exc_info)


async def run_load(name: str, endpoint: Any, tracebacks: Tracebacks) -> str:
    load, has_key, much = LOADS[name]
    url = endpoint.url if has_key else f"{endpoint.url.removesuffix('v1').rstrip('/').rpartition('/')[0]}/v1"
    honest = await _client("--honest", endpoint.url)
    await asyncio.sleep(1.0)  # until it asks
    before, watch = tracebacks.number, Watch()
    if load:
        client = await _client("--client", url, name, str(much))
        answer = (await client.communicate())[0].decode().strip()
    else:
        await asyncio.sleep(HELD_S)
        answer = ""
    grown = watch.end()
    taken = sorted(json.loads((await honest.communicate(b"\n"))[0]))
    p50, p99 = (1000 * taken[int(len(taken) * share)] for share in (0.5, 0.99))
    stall, own = 1000 * watch.stall_s, 1000 * watch.own_s
    num_tracebacks = tracebacks.number - before
    return f"| {name} | {answer} | {grown:.0f} | {stall:.0f} | {own:.0f} | {p50:.1f} | {p99:.1f} | {num_tracebacks} |"


async def _client(*words: str) -> asyncio.subprocess.Process:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return await asyncio.create_subprocess_exec(sys.executable, __file__, *words, **pipes)


async def measure(only: str) -> None:
    from slime.imports import importing

    with importing():  # as a run's driver does
        from plugins.agents.tests.endpoint.played import AGENTS, END, Stage
        from slime_agents.endpoint.options import EndpointOptions
        from slime_agents.endpoint.program import EndpointProgram

    tracebacks = Tracebacks()
    logging.getLogger().addHandler(tracebacks)

    async def agent(task: Any, endpoint: Any) -> None:
        print("| load | answer | growth, MB | stall, ms | own time, ms | honest p50, ms | p99, ms | tracebacks |")
        print("|---|---|---|---|---|---|---|---|")
        for name in LOADS:
            if only in name:
                print(await run_load(name, endpoint, tracebacks), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder), lambda before: f"hello{END}")
        AGENTS["now"] = agent
        sample = await stage.make(EndpointProgram(EndpointOptions(path=f"{Stage.__module__}:now")), timeout_s=900.0)
        assert sample.verdict is None, sample.verdict


def main(given: argparse.Namespace) -> None:
    from slime.imports import collect_rarely
    from slime.time_limit import often

    limit = int(given.memory_gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    collect_rarely()  # this and what follows as a run does
    with asyncio.Runner() as runner, often():
        runner.run(measure(given.only))


def tell(url: str, name: str, much: int) -> None:
    os.nice(19)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))  # the endpoint may have fewer: ulimit -Sn
    parts, load = urlsplit(url), LOADS[name][0]
    assert load, "it does something"
    said = load((str(parts.hostname), int(parts.port or 0)), parts.path, much)
    print(", ".join(f"{answer}: {count}" if count > 1 else answer for answer, count in said.items() if count))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        tell(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    elif sys.argv[1:2] == ["--honest"]:
        print(json.dumps(ask_honestly(sys.argv[2])))
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--only", default="", help="loads whose name has this")
        parser.add_argument("--memory-gib", type=float, default=6.0, help="of addresses that the endpoint may take")
        main(parser.parse_args())
