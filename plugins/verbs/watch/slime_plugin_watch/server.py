"""Serves the live page on this machine's loopback address, to whoever has the key."""

from __future__ import annotations

import gzip
import hmac
import json
import secrets
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from slime.errors import SlimeError
from slime_plugin_watch.page import page
from slime_plugin_watch.view import RunView, differences

LOOPBACK = "127.0.0.1"
COMPRESSED_BYTES = 4096
"""Longer answers are compressed: the way through ssh may be slow."""


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

    def __init__(self, views: Sequence[RunView], port: int = 0) -> None:
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

    def told(self, have: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """What a page lacks that `have` this of each run."""
        with self.lock:
            runs = [view.told(of_run) for view, of_run in zip(self.views, have or [{}] * len(self.views), strict=True)]
            return {"now": time.time(), "runs": runs, "differences": differences(self.views)}


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if asked.path == "/":
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", self.server.html.encode())
        elif not self._has_key():
            said = "The key is not that of this 'slime watch'. Open the address that it printed."
            self._say(HTTPStatus.UNAUTHORIZED, said)
        else:
            self._tell(asked.path, {name: values[0] for name, values in parse_qs(asked.query).items()})

    def _has_key(self) -> bool:
        said = self.headers.get("Authorization", "")
        return hmac.compare_digest(said.encode(), f"Bearer {self.server.key}".encode())

    def _tell(self, path: str, asked: Mapping[str, str]) -> None:
        try:
            told = self._told(path, asked)
        except SlimeError as error:
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except (KeyError, IndexError, ValueError, FileNotFoundError):
            self._say(HTTPStatus.NOT_FOUND, "there is no such thing, or no longer")
        else:
            self._answer(HTTPStatus.OK, "application/json", json.dumps(told).encode())

    def _told(self, path: str, asked: Mapping[str, str]) -> Any:
        if path == "/data":
            return self.server.told(json.loads(asked["have"]))
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
