"""`sglang-router` before several engines: a process of its own, which ends when the one that started it ends.

`python -m slime.rollout.router PARENT PORT ENGINE_URL...` is what runs in it, with the engines' key on its standard
input. Only `/generate` goes through the router; weights and aborts concern every engine and go to each directly.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from slime.errors import SlimeError
from slime.net import LOOPBACK, Endpoint, hand_over, reserved_port, take_key
from slime.rollout.lifeline import die_with_parent
from slime.topology.server_fields import MAX_IMBALANCE

if TYPE_CHECKING:
    from slime.rollout.client import EngineClient

POLL_S = 0.1
NO_LIMIT_S = 10**7
"""The router wants a limit; whether an engine hangs is not told by how long a response takes."""
MAX_FAILURES, MAX_RETRIES = 3, 10
"""So many requests in a row fail on an engine before it gets no more for a minute, and so often one request is tried.
By the router's defaults, 10 and 5, one request can use up its tries on a dead engine, which is never busy."""


@contextmanager
def open_router(engines: Sequence[Endpoint], logs: Path, start_timeout_s: float = 60.0) -> Iterator[EngineClient]:
    """A client of a router before `engines`, which must be healthy; the router ends with the context.

    Raises:
        SlimeError: the router does not come up or does not reach an engine within `start_timeout_s` seconds.
    """
    from slime.rollout.client import EngineClient

    log = logs / "router.log"
    with ExitStack() as stack:
        with reserved_port(LOOPBACK) as port:
            router = RouterProcess(engines, port, log)
            stack.callback(router.stop)
            router.wait_until_ready(start_timeout_s)
        yield EngineClient(router.endpoint, log=log, together=False)


class RouterProcess:
    """The router, from start to stop.

    Args:
        engines: those it serves, already healthy, under one key.
        port: free TCP port of this host.
        log: file that gets its output.
    """

    def __init__(self, engines: Sequence[Endpoint], port: int, log: Path) -> None:
        (key,) = {engine.key for engine in engines}
        self.endpoint = Endpoint(f"http://{LOOPBACK}:{port}", key)
        self._urls, self._log = [engine.url for engine in engines], log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(os.getpid()), str(port), *self._urls],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        hand_over(key, self._process)

    def wait_until_ready(self, timeout_s: float) -> None:
        """Block until the router knows every engine.

        Raises:
            SlimeError: it ended (its port was taken, ...), or an engine is still missing after `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        while missing := self._missing():
            if self._process.poll() is not None:
                raise self._error(f"the router ended with code {self._process.returncode}: {self._last_line()}")
            if time.monotonic() > deadline:
                raise self._error(f"the router did not reach {', '.join(missing)} within {timeout_s:g} s")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End the router now; requests in flight fail."""
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _missing(self) -> list[str]:
        """Engines that the router does not know yet."""
        try:
            request = urllib.request.Request(f"{self.endpoint}/workers", headers=self.endpoint.headers)
            with urllib.request.urlopen(request, timeout=1) as answer:
                known = {worker["url"] for worker in json.load(answer)["workers"] if worker["is_healthy"]}
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            known = set()
        return [url for url in self._urls if url not in known]

    def _last_line(self) -> str:
        return self._log.read_text(errors="replace").strip().splitlines()[-1]

    def _error(self, what: str) -> SlimeError:
        return SlimeError(what, where=str(self.endpoint), todo=f"See {self._log}.")


def main(port: int, engine_urls: list[str]) -> None:
    """Serve until killed."""
    from sglang_router.router import Router
    from sglang_router.router_args import RouterArgs

    args = RouterArgs(
        worker_urls=engine_urls,
        host=LOOPBACK,
        api_key=take_key(),
        port=port,
        policy="cache_aware",
        balance_abs_threshold=MAX_IMBALANCE,  # beyond both, load counts for more than a shared prefix
        balance_rel_threshold=1.0,  # by default an engine may have half as much again as another
        request_timeout_secs=NO_LIMIT_S,
        cb_failure_threshold=MAX_FAILURES,
        retry_max_retries=MAX_RETRIES,
        prometheus_port=0,  # any free one: its default is the same for every router of a host
        log_level="warn",
    )
    Router.from_args(args).start()


def guard(arguments: Sequence[str]) -> int:
    """Run the router in a child and end it with our parent; the exit code is the child's.

    A thread beside the router could not watch the parent: the router keeps Python's global lock while it serves.
    """
    parent, port, *urls = arguments
    child = os.fork()
    if child == 0:
        main(int(port), urls)
        return 0
    die_with_parent(int(parent))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(guard(sys.argv[1:]))
