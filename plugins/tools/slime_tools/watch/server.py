"""`slime watch [RUN...]`: the live page of runs, on this machine's loopback address, to whoever has the key."""

from __future__ import annotations

import getpass
import gzip
import hmac
import json
import secrets
import socket
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from slime.arguments import ArgumentParser
from slime.errors import SlimeError
from slime.printable import printable
from slime_tools.watch.page import page
from slime_tools.watch.runs import RUNS, find, is_run
from slime_tools.watch.view import RunView, differences

LOOPBACK = "127.0.0.1"
COMPRESSED_BYTES = 4096
"""Longer answers are compressed: the way through ssh may be slow."""
MAX_OPEN = 64
"""Connections at a time, a thread each. With one more, that is closed which has not shown the key for longest."""
STRANGER_S, IDLE_S = 20.0, 120.0
"""Seconds for which a connection lasts that shows no key, and for which one does behind a request with it."""
_HAVE = "'have' is a list with, for each run, an object of the cursors that the page has: texts by their names"


class MalformedError(Exception):
    """A request that no page makes; says what is wrong with it."""


class PageServer(ThreadingHTTPServer):
    """The page and what it asks for: `/data`, `/samples` and `/texts`.

    The page itself is the same for all runs, and anybody on this machine may have it. Everything of a run is answered
    only to requests with the key in a header, which no page of another origin can send. The address has the key in its
    fragment, which browsers do not send and servers do not log.

    Args:
        views: the runs.
        port: to listen at; 0: a free one.

    Raises:
        OSError: the port is taken.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, views: Sequence[RunView], port: int = 0) -> None:
        self._open: dict[socket.socket, float] = {}
        self._opening = threading.Lock()
        super().__init__((LOOPBACK, port), _Handler)
        self.views, self.key = views, secrets.token_urlsafe(18)
        self.lock = threading.Lock()
        self.html, self.policy = page("slime watch")

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/#{self.key}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle is no error; all else is said, as ever."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._opening:
            self._open[request] = time.monotonic() + STRANGER_S
            if len(self._open) > MAX_OPEN:
                self._end(next(iter(self._open)))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._opening:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called twice a second."""
        with self._opening:
            for connection in [each for each, end in self._open.items() if end < time.monotonic()]:
                self._end(connection)

    def keep(self, connection: socket.socket) -> None:
        """It has shown the key."""
        with self._opening:
            if self._open.pop(connection, None) is not None:
                self._open[connection] = time.monotonic() + IDLE_S

    def _end(self, connection: socket.socket) -> None:
        """Its thread reads no more, and closes it."""
        del self._open[connection]
        with suppress(OSError):  # it is closed already
            connection.shutdown(socket.SHUT_RDWR)

    def told(self, have: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """What a page lacks that `have` this of each run."""
        with self.lock:
            runs = [view.told(of_run) for view, of_run in zip(self.views, have or [{}] * len(self.views), strict=True)]
            return {"now": time.time(), "runs": runs, "differences": differences(self.views)}


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        try:
            asked = urlsplit(self.path)
        except ValueError:
            self._say(HTTPStatus.BAD_REQUEST, "this is no address")
            return
        key = self.headers.get("Authorization", "").encode()
        if asked.path == "/":
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", self.server.html.encode())
        elif not hmac.compare_digest(key, f"Bearer {self.server.key}".encode()):
            said = "The key is not that of this 'slime watch'. Open the address that it printed."
            self._say(HTTPStatus.UNAUTHORIZED, said)
        else:
            self.server.keep(self.connection)
            self._tell(asked.path, {name: values[0] for name, values in parse_qs(asked.query).items()})

    def _tell(self, path: str, asked: Mapping[str, str]) -> None:
        try:
            told = self._told(path, asked)
        except SlimeError as error:
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except MalformedError as error:
            self._say(HTTPStatus.BAD_REQUEST, str(error))
        except (KeyError, IndexError, ValueError, FileNotFoundError):
            self._say(HTTPStatus.NOT_FOUND, "there is no such thing, or no longer")
        else:
            self._answer(HTTPStatus.OK, "application/json", json.dumps(told).encode())

    def _told(self, path: str, asked: Mapping[str, str]) -> Any:
        if path == "/data":
            return self.server.told(_have(asked["have"], len(self.server.views)))
        if not asked["run"].isdecimal():
            raise MalformedError("'run' is the number of a run, from 0")
        view = self.server.views[int(asked["run"])]
        return {"/samples": lambda: view.samples(asked["name"]), "/texts": view.texts}[path]()

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._answer(status, "text/plain; charset=utf-8", text.encode("utf-8", "backslashreplace"))

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        if len(body) > COMPRESSED_BYTES and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, compresslevel=1)
            self.send_header("Content-Encoding", "gzip")
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": f"{self.server.policy}; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal shows the address."""


def _have(text: str, num_runs: int) -> list[dict[str, str]]:
    """What a page says that it has; empty for a page that has nothing yet.

    Raises:
        MalformedError: it is something else.
    """
    try:
        have: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise MalformedError(_HAVE) from None
    if not isinstance(have, list) or len(have) not in (0, num_runs):
        raise MalformedError(_HAVE)
    for of_run in have:
        if not isinstance(of_run, dict) or not all(isinstance(cursor, str) for cursor in of_run.values()):
            raise MalformedError(_HAVE)
    return have


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = """\
Shows runs as they go on, on a page for a browser on this machine, or on another one through ssh. Several runs are laid
over each other. Ctrl-C ends the page, not the run."""
    text = f"run directory (default: the newest in {RUNS}/)"
    parser.add_argument("runs", type=Path, nargs="*", metavar="run", help=text)
    parser.add_argument("--port", type=int, default=0, help="to serve at (default: a free one)")


def run(args: Namespace) -> None:
    """Raises SlimeError: there is no run to watch, a line of its metrics is damaged, or the port is taken."""
    folders = [folder.absolute() for folder in args.runs] or find(Path(RUNS).absolute())[:1]
    for folder in folders:
        if not is_run(folder):
            raise SlimeError("there is no run here", where=str(folder), todo="'slime runs' lists those of a folder.")
    if not folders:
        todo = "Name a run directory; 'slime runs FOLDER' lists those of a folder."
        raise SlimeError("there is no run here", where=str(Path(RUNS).absolute()), todo=todo)
    views = [RunView(folder) for folder in folders]
    for view in views:
        view.told({})  # damage is said here, before anybody looks
    try:
        server = PageServer(views, args.port)
    except OSError as error:
        what = f"port {args.port} cannot be had ({error.strerror})"
        raise SlimeError(what, where="slime watch", todo="Name another --port, or none.") from error
    with server:
        print(printable(f"watching {', '.join(str(folder) for folder in folders)}"))
        print(f"open            {server.url}")
        tunnel = f"ssh -N -L {server.port}:{LOOPBACK}:{server.port} {getpass.getuser()}@{socket.gethostname()}"
        print(f"from elsewhere  {printable(tunnel)}   and open the same address there", flush=True)
        server.serve_forever()
