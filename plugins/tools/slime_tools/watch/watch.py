"""`slime watch [RUN...]`: the live page of runs, served on this machine's loopback address."""

from __future__ import annotations

import getpass
import socket
from argparse import Namespace
from pathlib import Path

from slime.arguments import ArgumentParser
from slime.errors import SlimeError
from slime.printable import printable
from slime_tools.watch.found import RUNS, find, is_run


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = """\
Shows runs as they go on, on a page for a browser on this machine, or on another one through ssh. Several runs are laid
over each other. Ctrl-C ends the page, not the run."""
    text = f"run directory (default: the newest in {RUNS}/)"
    parser.add_argument("runs", type=Path, nargs="*", metavar="run", help=text)
    parser.add_argument("--port", type=int, default=0, help="to serve at (default: a free one)")


def run(args: Namespace) -> None:
    """Raises SlimeError: there is no run to watch, a line of its metrics is damaged, or the port is taken."""
    from slime_tools.watch.server import LOOPBACK, PageServer
    from slime_tools.watch.view import RunView

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
