"""The router's process; its work before real engines is shown in test_loop_sglang.py."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import aiohttp
import psutil
import pytest

from slime.errors import SlimeError
from slime.net import Endpoint, Secret, new_key, reserved_port
from slime.rollout.client import EngineClient
from slime.rollout.router import RouterProcess, open_router
from slime.topology.server_fields import MAX_IMBALANCE

pytestmark = pytest.mark.slow

NOBODY = Endpoint("http://127.0.0.1:9", Secret("any"))  # the discard port: nothing listens


def test_an_engine_out_of_reach_is_named(tmp_path):
    with (
        pytest.raises(SlimeError, match=rf"the router did not reach {NOBODY} within 3 s\. See .*router\.log"),
        open_router([NOBODY], tmp_path, start_timeout_s=3),
    ):
        pass


def test_a_taken_port_is_said(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        router = RouterProcess([NOBODY], taken.getsockname()[1], tmp_path / "router.log")
        with pytest.raises(SlimeError, match=r"the router ended with code 1: .*Address already in use"):
            router.wait_until_ready(30)


class Holding(BaseHTTPRequestHandler):
    """A server that keeps every generate request until it is told to answer."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._answer()

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append(self.headers["Authorization"])
        assert self.server.may_answer.wait(30)
        self._answer()

    def _answer(self):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *args):
        """Say nothing."""


@contextmanager
def holding_server(may_answer):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Holding)
    server.requests, server.may_answer = [], may_answer
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        may_answer.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_engines_share_the_requests_evenly_though_all_begin_alike(tmp_path):
    """By the router's defaults one engine may have half as many again as another: the step would wait for it."""
    num_requests, may_answer, key = 128, threading.Event(), new_key()

    async def generate(session, router, number):
        async with session.post(f"{router}/generate", json={"input_ids": [*range(32), number]}) as answer:
            return answer.status

    async def generate_all(router, servers):
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, headers=router.headers) as session:
            requests = [asyncio.ensure_future(generate(session, router, number)) for number in range(num_requests)]
            while sum(len(server.requests) for server in servers) < num_requests:
                assert not any(request.done() for request in requests), "nobody has answered yet"
                await asyncio.sleep(0.05)
            may_answer.set()
            return await asyncio.gather(*requests)

    with holding_server(may_answer) as one, holding_server(may_answer) as other:
        engines = [Endpoint(f"http://127.0.0.1:{server.server_port}", key) for server in (one, other)]
        with open_router(engines, tmp_path) as client:
            router = Endpoint(client.url, key)
            assert asyncio.run(generate_all(router, (one, other))) == [200] * num_requests
            assert {*one.requests, *other.requests} == {f"Bearer {key!s}"}
            with pytest.raises(SlimeError, match="status 401"):
                asyncio.run(EngineClient(replace(router, key=new_key())).generate([1], {}))
    # A few over: the router counts a request a moment after it has chosen for it. By its defaults it is 26 here.
    assert abs(len(one.requests) - len(other.requests)) <= MAX_IMBALANCE + 4


DRIVER = """
import sys, time
from pathlib import Path
from slime.net import Endpoint, Secret
from slime.rollout.router import RouterProcess
router = RouterProcess([Endpoint(sys.argv[1], Secret("any"))], int(sys.argv[2]), Path(sys.argv[3]))
print(router._process.pid, flush=True)
time.sleep(60)
"""


def test_it_dies_with_the_one_that_started_it(tmp_path):
    with reserved_port("127.0.0.1") as port:
        command = [sys.executable, "-c", DRIVER, NOBODY.url, str(port), str(tmp_path / "router.log")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
            try:
                group = int(driver.stdout.readline())
                wait_for(lambda: members(group) - {group})
            finally:
                driver.kill()
    wait_for(lambda: not members(group))


def wait_for(condition, timeout_s=20):
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return value


def members(group):
    """Living processes of a process group."""
    return {process.pid for process in psutil.process_iter() if is_member(process, group)}


def is_member(process, group):
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):  # it ended while we looked
        return False
