"""`slime watch [RUN...]`: the live page of runs, on this machine's loopback address, to whoever has the key."""

from __future__ import annotations

import getpass
import gzip
import hashlib
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
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from slime.arguments import ArgumentParser
from slime.errors import SlimeError
from slime.printable import printable
from slime_tools.watch.answers import Wanted
from slime_tools.watch.page import page
from slime_tools.watch.progress import MAX_POINTS
from slime_tools.watch.runs import RUNS, find, name_below
from slime_tools.watch.view import RunView, differences

LOOPBACK = "127.0.0.1"
COMPRESSED_BYTES = 4096
"""Longer answers are compressed: the way through ssh may be slow."""
MAX_OPEN = 64
"""Connections at a time, a thread each. With one more, that is closed which has not shown the key for longest."""
STRANGER_S, IDLE_S = 20.0, 120.0
"""Seconds for which a connection lasts that shows no key, and for which one does behind a request with it."""
MAX_DRAWN, FIRST_DRAWN = 12, 6
"""Runs that are all drawn at first; of more than these, the newest few are."""
POINTS_OF_MANY = 400
"""Of each curve, where there are more runs than that: all of them may be drawn."""
_HAVE = (
    "'have' is an object: 'since' (a number), 'differences' (a text), 'most' (points of a curve, a number above 0), "
    "'names' (of metrics, a list), and 'runs', by their numbers an object of cursors: texts by their names"
)


@dataclass(frozen=True)
class Have:
    """What a page has, and wants.

    Attributes:
        since: `version` of the newest answer; 0: none.
        differences: their cursor.
        most: largest number of points of each curve; None: the default for that number of runs.
        names: of the metrics that it wants, with `*`; None: all.
        runs: that it draws, by their numbers, with the cursors that `RunView.told` takes; None: it has nothing yet.
    """

    since: int = 0
    differences: str = ""
    most: int | None = None
    names: Sequence[str] | None = None
    runs: Mapping[int, Mapping[str, str]] | None = None


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
        self.first_drawn = range(len(views) if len(views) <= MAX_DRAWN else FIRST_DRAWN)
        self._version, self._heads = 0, dict[int, tuple[int, dict[str, Any]]]()
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

    def told(self, have: Have) -> dict[str, Any]:
        """What a page lacks that has this."""
        with self.lock:
            drawn = {number: {} for number in self.first_drawn} if have.runs is None else have.runs
            most = have.most or (MAX_POINTS if len(self.views) == 1 else POINTS_OF_MANY)
            runs = [self._told(number, cursors, most, have.names) for number, cursors in drawn.items()]
            told = {"now": time.time(), "count": len(self.views), "most": most, "runs": runs}
            if len(self.views) > 1:
                told |= {"listed": self._listed(have.since), "version": self._version}
                told |= self._differences([self.views[number] for number in drawn], have.differences)
            return told

    def _told(self, number: int, cursors: Mapping[str, str], most: int, names: Sequence[str] | None) -> dict[str, Any]:
        view = self.views[number]
        try:
            return {"number": number} | view.told(cursors, most, names)
        except SlimeError as error:
            if len(self.views) == 1:
                raise
            head = {**view.brief(), "said": str(error)}  # one damaged run of many hides no other
            return {"number": number, "name": view.name, "head": head, "warnings": [], "curves": {}, "group": ""}

    def _listed(self, since: int) -> dict[int, dict[str, Any]]:
        """Name and `RunView.brief` of each run that has changed since that version."""
        version = self._version + 1
        for number, view in enumerate(self.views):
            try:
                head = view.brief()
            except SlimeError as error:
                head = {"state": "not known", "said": str(error), "stage": None, "results": {}, "started": 0.0}
            if number not in self._heads or self._heads[number][1] != head:
                self._heads[number] = (version, head)
                self._version = version
        changed = {number: head for number, (at, head) in self._heads.items() if at > since}
        return {number: {"name": self.views[number].name, "head": head} for number, head in changed.items()}

    def _differences(self, views: Sequence[RunView], known: str) -> dict[str, Any]:
        found = differences(views)
        digest = hashlib.sha256(repr(found).encode()).hexdigest()[:8]
        return {} if digest == known else {"differences": found, "cursor": digest}


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
        if path == "/texts":
            return view.texts()
        if path != "/samples":
            raise KeyError(path)
        if "prompt" in asked:
            return view.same_prompt(asked["of"], asked["prompt"], asked["name"])
        bounds = {name: float(asked[name]) for name in ("least", "most") if name in asked}
        return view.samples(asked.get("name", ""), Wanted(asked.get("text", ""), **bounds))

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


def _have(text: str, num_runs: int) -> Have:
    """What a page says that it has.

    Raises:
        MalformedError: it is something else.
    """
    try:
        have = Have(**json.loads(text))
        runs = None if have.runs is None else {int(number): cursors for number, cursors in have.runs.items()}
        cursors = [text for each in (runs or {}).values() for text in each.values()]
        texts = [have.differences, *(have.names or ()), *cursors]
        numbers = type(have.since) is int and (have.most is None or (type(have.most) is int and have.most > 0))
        known = all(0 <= number < num_runs for number in runs or ())
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise MalformedError(_HAVE) from None
    if not (numbers and known and all(isinstance(each, str) for each in texts)):
        raise MalformedError(_HAVE)
    return replace(have, runs=runs)


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = """\
Shows runs as they go on, on a page for a browser on this machine, or on another one through ssh. Several runs are laid
over each other; of more than 12 the newest 6 are, and a list has all. Ctrl-C ends the page, not the run."""
    text = f"run directory, or a folder of them (default: the newest run in {RUNS}/)"
    parser.add_argument("runs", type=Path, nargs="*", metavar="run", help=text)
    parser.add_argument("--port", type=int, default=0, help="to serve at (default: a free one)")


def run(args: Namespace) -> None:
    """Raises SlimeError: there is no run to watch, a line of its metrics is damaged, or the port is taken."""
    views = _views([folder.absolute() for folder in args.runs])
    if len(views) == 1:
        views[0].told({})  # damage is said here, before anybody looks
    try:
        server = PageServer(views, args.port)
    except OSError as error:
        what = f"port {args.port} cannot be had ({error.strerror})"
        raise SlimeError(what, where="slime watch", todo="Name another --port, or none.") from error
    with server:
        shown = [str(view.folder) for view in views[:MAX_DRAWN]]
        more = f" and {len(views) - len(shown)} more" if len(views) > len(shown) else ""
        print(printable(f"watching {', '.join(shown)}{more}"))
        print(f"open            {server.url}")
        tunnel = f"ssh -N -L {server.port}:{LOOPBACK}:{server.port} {getpass.getuser()}@{socket.gethostname()}"
        print(f"from elsewhere  {printable(tunnel)}   and open the same address there", flush=True)
        server.serve_forever()


def _views(asked: Sequence[Path]) -> list[RunView]:
    """A view a run, of folders of runs the newest first; without a name, of the newest run here."""
    runs = {run: name_below(run, folder) for folder in asked for run in find(folder)}
    for folder in asked:
        if not any(run.is_relative_to(folder) for run in runs):
            raise SlimeError("there is no run here", where=str(folder), todo="'slime runs' lists those of a folder.")
    if not asked:
        here = Path(RUNS).absolute()
        runs = {run: name_below(run, here) for run in find(here)[:1]}
        if not runs:
            todo = "Name a run directory; 'slime runs FOLDER' lists those of a folder."
            raise SlimeError("there is no run here", where=str(here), todo=todo)
    most = MAX_POINTS if len(runs) <= MAX_DRAWN else POINTS_OF_MANY
    return [RunView(run, name=name, max_points=most) for run, name in runs.items()]
