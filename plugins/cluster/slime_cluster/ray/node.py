"""Ray on one host as a run starts it: few processes, the run's time to start, and a death among them that is told.

On the run's other hosts `python -m slime_cluster.ray.node SECONDS MARK ARGUMENTS...` is `ray ARGUMENTS...` in that way.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from slime.engines.scratch import how_ended
from slime.errors import EXIT_ERROR, Death, SlimeError
from slime_cluster.ray.folders import agent_behind, ray_folder
from slime_cluster.ray.reaper import UNKNOWN, is_alive
from slime_cluster.ray.signals import signals_postponed

POLL_S = 0.1
HELD_S, ENDING_S, SHUTDOWN_S = 5.0, 60.0, 1.0
"""Seconds for a driver after one of Ray's processes has died: to notice, for Ray may hold it in a call; to end in
order; and for Ray to shut down, which waits for a GCS that is gone."""
GOES_S = 5.0
"""Seconds that a raylet may take to end behind that of which Ray speaks so."""
HOST_GONE = ("Owner's node has crashed", "its node has died")
"""In what Ray says of an actor whose owner's host, or own, has gone."""
PROCESSES = ("gcs_server", "raylet")
LOG_BYTES, LOG_CHARACTERS = 1 << 16, 300
SLOW = "Raise cluster.start_timeout_s if the machine is only slow."


def start_environment(limit_s: float) -> dict[str, str]:
    """Variables that give Ray's processes `limit_s` seconds to find each other, instead of 5 to 30, have them start
    workers only for actors (no actor of a run takes one of those that wait), keep no record of each call, which only
    Ray's dashboard would read (driver and GCS grew by it with every step), and not log each minute what they have done
    so far, 4 MB an hour."""
    names = ("raylet_start_wait_time_s", "gcs_rpc_server_connect_timeout_s")
    never = ("task_events_report_interval_ms", "event_stats_print_interval_ms")
    more = {"RAY_enable_worker_prestart": "false", **{f"RAY_{name}": "0" for name in never}}
    return {f"RAY_{name}": str(math.ceil(limit_s)) for name in names} | more


@contextlib.contextmanager
def started_our_way(limit_s: float, own: OwnRay | None = None, *, may_stay: bool = False) -> Iterator[None]:
    """Ray that is started in the block has no dashboard, autoscaler or log monitor, and `limit_s` seconds to start;
    `own` is told of it. A run uses none of the three Python processes, and `ray.init` waits for the dashboard's even
    where it is told to do without: half of Ray's start. It has no way to say so, nor to wait longer than 30 seconds.
    Unless it `may_stay`, the kernel ends it with this process."""
    from ray._private import node, services, worker

    class Node(node.Node):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options | ({"spawn_reaper": False} if may_stay else {}))

        def start_head_processes(self) -> None:
            if own:
                own.node = self
            super().start_head_processes()

        def start_gcs_server(self) -> None:
            whole = node.wait_for_persisted_port  # lets no other thread run

            def wait(*args: Any, timeout_ms: int) -> Any:
                return _wait(self, "gcs_server", partial(whole, *args, timeout_ms=1), limit_s)

            with _replaced(node, "wait_for_persisted_port", wait):
                super().start_gcs_server()

        def start_ray_processes(self) -> None:
            super().start_ray_processes()
            _wait(self, "raylet", lambda: services.get_node(self.gcs_address, self._node_id), limit_s)

        def start_api_server(self, **_: object) -> None:
            self._webui_url = ""

        def start_monitor(self) -> None: ...

        def start_log_monitor(self) -> None: ...

    popen = services.ConsolePopen

    def apart(command: Sequence[str], **options: Any) -> Any:
        # A signal to the driver's group, as `timeout` sends one, is the driver's alone, which ends Ray in order.
        return popen([_WORKERS.sub("=0", word) for word in command], start_new_session=True, **options)

    with (
        _replaced(node, "Node", Node),
        # It prints 24 lines of a raylet that has died: a line of ours tells that.
        _replaced(worker, "listen_error_messages", lambda *_: None),
        _replaced(services, "ConsolePopen", apart),
    ):
        yield


def _wait(node: Any, name: str, ask: Callable[[], Any], limit_s: float) -> Any:
    """The result of `ask` once it raises no RuntimeError, because Ray's process `name` is up."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            with signals_postponed():  # a connection to the GCS that is made and not used waits for ever when it goes
                return ask()
        except RuntimeError as error:
            if death := _death(node):
                raise death from error
            if time.monotonic() > deadline:
                what = f"it is not up after {limit_s:g} s{last_words(Path(node.get_logs_dir_path()), name)}"
                raise SlimeError(what, where=f"Ray's {name} on {socket.gethostname()}", todo=SLOW) from error
        time.sleep(POLL_S)


_WORKERS = re.compile("(?<=^--num_prestart_python_workers)=.*")
"""The raylet's number of workers for the first driver, one a CPU, which `ray.init` waits for and cannot be told. Actors
of a run take none of these: each has an environment of its own."""


@contextlib.contextmanager
def signals_kept(own: OwnRay, limit_s: float) -> Iterator[None]:
    """`ray.init` in the block leaves SIGTERM to the handler that is there, as Ray's own prints a stack of C++, and
    `own` bounds its connection by `limit_s`, which Ray waits for without a limit."""
    from ray._private import utils, worker

    connect = worker.connect

    def keeping(*args: Any, **kwargs: Any) -> None:
        # Half a connection cannot be ended.
        with (
            signals_postponed() as came,
            _errors_unless(came),
            own.bounded("it is up but does not answer this process", limit_s),
        ):
            connect(*args, **kwargs)

    with _replaced(worker, "connect", keeping), _replaced(utils, "set_sigterm_handler", lambda handler: None):
        yield


@contextlib.contextmanager
def _errors_unless(came: Sequence[int]) -> Iterator[None]:
    """Standard error of the block appears behind it, unless signals came: for these Ray's C++ has a handler meanwhile,
    which prints a stack and then calls the one before it."""
    with tempfile.TemporaryFile() as written, open(os.dup(2), "wb") as errors:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(errors.fileno(), 2)
            if not came:
                written.seek(0)
                shutil.copyfileobj(written, errors)


@contextlib.contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    whole = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, whole)


def _end_of(node: Any, name: str) -> str:
    """The end of Ray's process `name`; empty while it lives, or if it was not started for this run."""
    if isinstance(node, LeftNode):
        end = node.end_of(name)
    else:
        infos = getattr(node, "all_processes", {}).get(name, ())
        codes = {info.process.pid: info.process.poll() for info in infos}
        end = next((f"(pid {pid}) {how_ended(code)}" for pid, code in codes.items() if code is not None), "")
    return end + (agent_behind(Path(node.get_logs_dir_path())) if end and name == "raylet" else "")


_NO_MESSAGE = re.compile(r"\[state-dump\]|\b0x[0-9a-f]{4,}|StackTrace")


def last_words(logs: Path, name: str) -> str:
    """The last message in the log of Ray's process `name`, stacks of C++ left out, as a part of a sentence; or
    empty."""
    for path in (logs / f"{name}.{kind}" for kind in ("err", "out")):
        lines = path.read_bytes()[-LOG_BYTES:].decode(errors="replace").splitlines() if path.is_file() else []
        if said := [line.strip() for line in lines if line.strip() and not _NO_MESSAGE.search(line)]:
            return f"; its log ends: {said[-1][-LOG_CHARACTERS:].rstrip('.')}"
    return ""


def _death(node: Any) -> Death | None:
    """The death of one of Ray's processes on this host, if one has died."""
    for name in PROCESSES:
        if end := _end_of(node, name):
            # Who is killed so has no time for words, and a raylet that follows an agent has only guesses.
            is_known = "SIGKILL" in end or ", because its " in end
            words = "" if is_known else last_words(Path(node.get_logs_dir_path()), name)
            where = f"Ray's {name} on {socket.gethostname()}"
            return Death(f"{end}{words}", where=where, todo="Start the same command again to resume.")
    return None


class LeftNode:
    """In the place of Ray's own object: its processes, which another driver of the run has started.

    Args:
        pids: by name.
        logs: folder of their logs.
    """

    def __init__(self, pids: Mapping[str, int], logs: str) -> None:
        self._processes, self._logs = {name: psutil.Process(pid) for name, pid in pids.items()}, logs

    def end_of(self, name: str) -> str:
        """As `_end_of`. How it has ended, its parent alone would know."""
        process = self._processes[name]
        return "" if is_alive(process) else f"(pid {process.pid}) has ended"

    def get_logs_dir_path(self) -> str:
        return self._logs

    def end(self) -> None:
        """End them, and with the raylet all that runs in Ray."""
        for process in self._processes.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()


class OwnRay:
    """The processes of Ray that this one starts. A death among them is told, though Ray may end this process first.

    Args:
        note: keeps the words that are to be said if this process vanishes.

    Attributes:
        node: Ray's own object for them, once it has begun to start them.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self.node: Any = None
        self._note = note
        self._error: Death | None = None
        self._noticed, self._ended, self._over = threading.Event(), threading.Event(), threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)

    def end_of(self, name: str) -> str:
        """See `slime.cluster.ray_starter.RayHosts.end_of`; the run ends because of it."""
        if end := _end_of(self.node, name):
            self._noticed.set()
        return end

    @contextlib.contextmanager
    def naming_deaths(self) -> Iterator[None]:
        """Replace an error by the death that has caused it. The death is told also where Ray holds this process, or
        ends it without a word, as where it finds the object store gone."""
        self._watching.start()
        try:
            yield
        except Death as error:
            self._error = self._behind(error)
            raise self._error from error.__cause__
        except Exception as error:
            if death := _death(self.node):
                raise death from error
            raise
        finally:
            for event in (self._noticed, self._ended):
                event.set()
            if not _death(self.node):  # else it is watched until Ray is shut down, which may take for ever
                self._over.set()

    def _behind(self, error: Death) -> Death:
        """The death of one of Ray's processes here that `error` tells of as that of an actor, or `error`. Ray gives up
        the actors of a raylet that ends in order, as for one of its agents, before that has ended."""
        deadline = time.monotonic() + GOES_S
        while any(words in error.what for words in HOST_GONE) and time.monotonic() < deadline:
            if death := _death(self.node):
                return death
            time.sleep(POLL_S)
        return error

    @contextlib.contextmanager
    def bounded(self, what: str, limit_s: float) -> Iterator[None]:
        """End this process, and tell `what` is wrong, where the block takes longer than `limit_s`, or where Ray, or
        somebody else, ends it there. Ray waits in C++ and lets no other thread run, so the interpreter's own watchdog
        does it, of which there is one: a block inside of another replaces its limit."""
        where = f"Ray's raylet on {socket.gethostname()}"
        self._note(f"slime: {SlimeError(f'{what}, or the run was killed as it started', where=where, todo=SLOW)}")
        with open(os.devnull, "wb") as nowhere:
            faulthandler.dump_traceback_later(limit_s, exit=True, file=nowhere)
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()
                self._note(UNKNOWN)

    def close(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not (death := _death(self.node)):
            if self._over.wait(POLL_S):
                return
        self._note(f"slime: {death}")
        for event, seconds in ((self._noticed, HELD_S), (self._ended, ENDING_S), (self._over, SHUTDOWN_S)):
            if not event.wait(seconds):
                break
        if not self._over.is_set():
            sys.stdout.flush()
            sys.stderr.write(f"slime: {self._error or death}\n")
            self._note("")
            os._exit(EXIT_ERROR)


def main() -> None:
    limit_s, mark = float(sys.argv[1]), sys.argv[2]
    sys.argv[1:] = [*sys.argv[3:], f"--temp-dir={ray_folder(mark)}"]
    from ray.scripts import scripts

    try:
        with started_our_way(limit_s):
            scripts.main()
    except SlimeError as error:
        sys.exit(f"slime: {error}")


if __name__ == "__main__":
    main()
