"""What strangers and clients may cost: every refusal beside a request within the limits, which is answered."""

from __future__ import annotations

import asyncio
import gzip
import json
import resource
import time
from contextlib import contextmanager, suppress

import httpx
import pytest

from plugins.agents.tests.endpoint.played import Stage, counting
from slime.types import Status
from slime_agents.endpoint import bodies, door

HELLO = {"messages": [{"role": "user", "content": "hello"}]}
BODY = json.dumps(HELLO).encode()


def play(tmp_path, agent, say=None, **engine):
    """An attempt of `agent(endpoint, client)`, which has to come to its end."""
    stage = Stage(tmp_path, say or counting(), **engine)

    async def asks(task, endpoint):
        async with httpx.AsyncClient(timeout=60, headers={"x-api-key": endpoint.key}) as client:
            await agent(endpoint, client)
            assert (await client.post(f"{endpoint.url}/chat/completions", json=HELLO)).status_code == 200

    sample = stage.play(asks)
    assert sample.status is Status.COMPLETED, sample.verdict
    return sample


class Raw:
    """A connection to the endpoint, in bytes."""

    @classmethod
    async def to(cls, endpoint):
        raw = cls()
        url = httpx.URL(endpoint.url)
        raw.path = url.path
        raw.reader, raw.writer = await asyncio.open_connection(url.host, url.port)
        return raw

    def head(self, *headers, path=None):
        lines = [f"POST {path or self.path}/chat/completions HTTP/1.1", "Host: x", *headers, "", ""]
        self.writer.write("\r\n".join(lines).encode())

    async def status(self):
        return int((await asyncio.wait_for(self.reader.readline(), 20)).split()[1])

    async def answer(self):
        status, length = await self.status(), 0
        while (line := (await self.reader.readline()).strip().lower()) != b"":
            name, _, value = line.partition(b":")
            length = int(value) if name == b"content-length" else length
        return status, await self.reader.readexactly(length)

    async def end(self):
        """Seconds until the endpoint has closed it."""
        began = time.monotonic()
        try:
            while await asyncio.wait_for(self.reader.read(2**16), 20):
                pass
        except ConnectionError:
            pass
        return time.monotonic() - began


@pytest.mark.parametrize("framing", ["Content-Length: 1000000000", "Transfer-Encoding: chunked"])
def test_a_stranger_is_answered_before_a_byte_of_the_body_and_closed(tmp_path, monkeypatch, framing):
    monkeypatch.setattr(door, "LINGER_S", 0.3)

    async def agent(endpoint, client):
        raw = await Raw.to(endpoint)
        raw.head(framing, path="/wrong/v1")
        status, body = await raw.answer()
        assert (status, json.loads(body)["error"]["message"]) == (401, "there is no attempt with this key")
        num_sent = 0
        with suppress(ConnectionError):  # not TimeoutError: it is closed
            while num_sent < 10**9:
                raw.writer.write(b"10000\r\n" + bytes(2**16) + b"\r\n")
                await asyncio.wait_for(raw.writer.drain(), 20)
                num_sent += 2**16
        assert num_sent < 2 * 10**7, "the kernel's buffers, and nothing behind them"
        known = await Raw.to(endpoint)
        known.head(f"Content-Length: {len(BODY)}")
        known.writer.write(BODY)
        assert (await known.answer())[0] == 200

    play(tmp_path, agent)


def test_a_body_has_a_limit_however_it_is_sent(tmp_path):
    most = bodies.MAX_BODY

    async def agent(endpoint, client):
        async def chunks(size):
            yield BODY[:-1] + b', "metadata": "'
            for _ in range(size // 2**16):
                yield b"x" * 2**16
            yield b'"}'

        completions, messages = f"{endpoint.url}/chat/completions", f"{endpoint.anthropic_url}/v1/messages"
        for url in (completions, messages):
            assert (await client.post(url, content=chunks(most // 2))).status_code == 200
            refused = await client.post(url, content=chunks(most))
            assert refused.status_code == 413
            assert f"the body is larger than {most} bytes" in refused.json()["error"]["message"]
        assert refused.json()["error"]["type"] == "request_too_large"
        raw = await Raw.to(endpoint)
        raw.head(f"Content-Length: {most + 1}")
        assert await raw.status() == 413

    play(tmp_path, agent)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity, gzip"])
def test_nothing_is_unzipped(tmp_path, encoding):
    async def agent(endpoint, client):
        url = f"{endpoint.url}/chat/completions"
        refused = await client.post(url, content=gzip.compress(BODY), headers={"content-encoding": encoding})
        assert refused.status_code == 415
        assert "send it uncompressed" in refused.json()["error"]["message"]
        assert (await client.post(url, content=BODY, headers={"content-encoding": "identity"})).status_code == 200

    play(tmp_path, agent)


def test_a_client_that_asks_whether_to_go_on_is_told(tmp_path):
    """As curl does before a long body."""

    async def agent(endpoint, client):
        raw = await Raw.to(endpoint)
        raw.head(f"Content-Length: {len(BODY)}", "Expect: 100-continue")
        assert await raw.answer() == (100, b"")
        raw.writer.write(BODY)
        assert (await raw.answer())[0] == 200
        stranger = await Raw.to(endpoint)
        stranger.head(f"Content-Length: {len(BODY)}", "Expect: 100-continue", path="/wrong/v1")
        assert await stranger.status() == 401

    play(tmp_path, agent)


def test_a_body_that_does_not_come_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(bodies, "BODY_S", 0.5)

    async def agent(endpoint, client):
        slow, steady = await Raw.to(endpoint), await Raw.to(endpoint)
        for raw in (slow, steady):
            raw.head(f"Content-Length: {len(BODY)}")
        for byte in BODY[:3]:
            slow.writer.write(bytes([byte]))
            await asyncio.sleep(0.05)
        steady.writer.write(BODY[:10])
        await asyncio.sleep(0.1)
        steady.writer.write(BODY[10:])
        assert (await steady.answer())[0] == 200
        status, body = await slow.answer()
        assert status == 408
        assert "the body did not come within 0.5 s" in json.loads(body)["error"]["message"]

    play(tmp_path, agent)


def test_silent_connections_are_closed_and_those_of_agents_kept(tmp_path, monkeypatch):
    """An answer may take longer than a stranger's patience, and so may what an agent does between two questions."""
    monkeypatch.setattr(door, "HEAD_S", 0.5)

    async def agent(endpoint, client):
        silent, halfway, honest = [await Raw.to(endpoint) for _ in range(3)]
        halfway.writer.write(b"POST /v1/chat/comp")
        for _ in range(2):
            honest.head(f"Content-Length: {len(BODY)}")
            honest.writer.write(BODY)
            assert (await honest.answer())[0] == 200
            await asyncio.sleep(1.0)
        for raw in (silent, halfway):
            assert await raw.end() < 0.1, "it was closed long ago"

    play(tmp_path, agent, delay_s=1.5)


@contextmanager
def open_files(number):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("files", "kept"), [(800, 100), (None, 256)])
def test_connections_without_a_key_are_few(tmp_path, caplog, files, kept):
    """The oldest are closed; there are always files for others."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert soft >= 2048, "this test opens some hundred connections at both ends"

    async def agent(endpoint, client):
        first = await Raw.to(endpoint)
        first.head(f"Content-Length: {len(BODY)}")
        first.writer.write(BODY)
        assert (await first.answer())[0] == 200
        silent = [await Raw.to(endpoint) for _ in range(kept + 40)]
        assert (await client.post(f"{endpoint.url}/chat/completions", json=HELLO)).status_code == 200
        for raw in silent[:30]:
            assert await raw.end() < 20
        newest = asyncio.create_task(silent[-1].end())
        await asyncio.sleep(0.2)
        assert not newest.done()
        newest.cancel()
        first.head(f"Content-Length: {len(BODY)}")
        first.writer.write(BODY)
        assert (await first.answer())[0] == 200, "it had shown its key before"
        for raw in silent:
            raw.writer.close()

    with open_files(files or soft):
        play(tmp_path, agent)
    assert "connections that showed no key" in caplog.text


def test_what_is_no_http_is_counted_in_one_line(tmp_path, caplog, capfd):
    both = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    many = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 3000 + b"\r\n"
    sent = [both, many, b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET / HTTP/1.1\r\nA" + b"b" * 10**5]

    async def agent(endpoint, client):
        for each in sent:
            raw = await Raw.to(endpoint)
            raw.writer.write(each)
            assert await raw.status() == 400
            await raw.end()
        chunked = await Raw.to(endpoint)
        chunked.head("Transfer-Encoding: chunked")
        chunked.writer.write(b"no number\r\n")
        assert await chunked.status() == 400

    play(tmp_path, agent)
    assert [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"] == [
        "The endpoint closed 0 connections that showed no key of an attempt, and refused 6 requests that are no HTTP. "
        "Agents do neither: see who else reaches rollout.program.options.host."
    ]
    assert "Traceback" not in capfd.readouterr().err
