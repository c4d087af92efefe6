"""The reaper: nothing outlives the driver on this host, however the driver ends.

Most processes notice by themselves, but after a `kill -9` Ray's agents keep talking to a dead server for minutes. So a
small process remembers the driver's processes, waits for its end, then kills those that are left and removes what
engines would have removed. It knows them as the driver's descendants and by a variable in their environment: a process
that was started in the last moment, by one that has ended since, is nobody's descendant any more.

With `cluster.driver_grace_s` it lets Ray, and what runs in it, live for that long after a `kill -9`, for another
driver.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

import psutil

from slime.engines.scratch import how_ended
from slime_cluster.ray.folders import PREFIX, agent_behind_all, clear_all
from slime_cluster.ray.signals import signals_postponed

LOOK_S = 1.0
"""Seconds between looks at the driver's descendants: their orphans can no longer be told once it is gone."""
GRACE_S = 3.0
"""Seconds in which they may end by themselves."""
POLL_S = 0.05
_MARK = "SLIME_RUN_MARK"
"""Environment variable that what is started in the block inherits."""
ITSELF = "the process that ends what a killed run leaves"
"""What a driver calls it."""
UNKNOWN = "?"
"""Note where the cause of an end would not be known: then the reaper says so."""
AGAIN = "Start the same command again to resume."
END = b"\0"
"""The driver's word at the end of the block; where it dies, the kernel closes its end without one."""
_STAY = b"\1"
"""Begins the line that says what stays."""
ANSWER_S = 20.0
"""Seconds that a call of another driver may take; what does not stay is ended before."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stay:
    """What the reaper lets live if the driver is killed.

    Attributes:
        seconds: that it waits for another driver.
        door: path of the socket at which this one calls.
        pids: of Ray's processes, all of whose descendants stay, too.
        record: file that tells of all this, removed at the end.
    """

    seconds: float
    door: str
    pids: list[int]
    record: str


class Reaper:
    """The process that outlives this one. `words`: what it reads."""

    def __init__(self, words: IO[bytes]) -> None:
        self._words, self._lock = words, threading.Lock()
        self._note, self._stay = b"", b""

    def note(self, words: str) -> None:
        """Have it print `words` if this process vanishes: for `UNKNOWN`, as at first, its own; for none, nothing."""
        with self._lock:
            self._note = words.encode() + b"\n"
            self._tell(self._note)

    def stay(self, stay: Stay | None) -> None:
        """From now on let all that live if this process vanishes without another note; None: nothing."""
        with self._lock:
            self._stay = _STAY + json.dumps(stay and asdict(stay)).encode() + b"\n"
            self._tell(self._stay)

    def go_on_in(self, words: IO[bytes]) -> None:
        """Another process has its place, and is told what it was told last."""
        with self._lock:
            self._words = words
            self._tell(self._note + self._stay)

    def _tell(self, lines: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._words.write(lines)
            self._words.flush()


@contextlib.contextmanager
def reaped(mark: str) -> Iterator[Reaper]:
    """Have all that this process starts in the block gone soon after the block or the process ends. `mark` is the
    run's, in the names of its engines' scratch folders and shared memory, too. A reaper that dies gets a successor."""
    command = [sys.executable, "-m", "slime_cluster.ray.reaper", mark, json.dumps(_greeting())]
    unmarked, lock, is_over = dict(os.environ), threading.Lock(), threading.Event()
    process: subprocess.Popen[bytes]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=unmarked)

    def end() -> None:
        with lock:
            is_over.set()
            process.communicate(END)

    def succeed() -> None:
        nonlocal process
        while True:
            process.wait()
            is_over.wait(LOOK_S)  # what kills both is about to kill this process, too
            with lock:
                if is_over.is_set():
                    return
                log.warning("%s %s. Another one takes its place", ITSELF, how_ended(process.returncode))
                process = start()
                reaper.go_on_in(cast(IO[bytes], process.stdin))

    with contextlib.ExitStack() as stack:
        with signals_postponed():  # until it will be told of the end: it takes silence for a death
            process = start()
            stack.callback(end)
        stack.enter_context(marked(mark))
        reaper = Reaper(cast(IO[bytes], process.stdin))
        threading.Thread(target=succeed, daemon=True).start()
        yield reaper


def call(door: str) -> socket.socket | None:
    """A connection to the reaper that waits at `door`, whose driver this process is from now on; None: none waits."""
    called = socket.socket(socket.AF_UNIX)
    called.settimeout(ANSWER_S)
    try:
        called.connect(door)
        called.sendall(json.dumps(_greeting()).encode() + b"\n")
        if called.recv(1):
            called.settimeout(None)
            return called
    except OSError:
        pass
    called.close()
    return None


def end_unguarded(mark: str) -> None:
    """End what stays of a run whose reaper has been killed, too."""
    guards = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    if not any("slime_cluster.ray.reaper" in words and mark in words for words in guards):
        _end(_marked(mark))
        clear_all(mark)


def _greeting() -> dict[str, Any]:
    """Who this driver is, and the processes that it had started before the block: they are its own business, unless it
    is gone."""
    return {"driver": os.getpid(), "before": [child.pid for child in _descendants(os.getpid())]}


@contextlib.contextmanager
def marked(mark: str) -> Iterator[None]:
    """Mark what is started in the block as the run's."""
    os.environ[_MARK] = mark
    try:
        yield
    finally:
        os.environ.pop(_MARK)


class _Driver:
    """A driver as the reaper knows it: `source` is what it writes to."""

    def __init__(self, source: IO[bytes] | socket.socket, driver: int, before: Sequence[int]) -> None:
        self.pid, self._source, self._before = driver, source, before
        self.note, self._is_orderly = UNKNOWN, False
        self.stay: Stay | None = None

    def watch(self, family: set[psutil.Process]) -> set[psutil.Process]:
        """Listen until it ends; returns `family` with what it has started, less what is its own business."""
        rest = b""
        while not rest.endswith(END):
            if select.select([self._source], [], [], LOOK_S)[0]:
                if not (words := os.read(self._source.fileno(), 1 << 16)):
                    return family
                *lines, rest = (rest + words).split(b"\n")
                for line in lines:
                    self._hear(line)
            else:
                family = {process for process in family if process.is_running()} | _descendants(self.pid)
        self._is_orderly = True
        return {process for process in family if process.pid not in self._before}

    def _hear(self, line: bytes) -> None:
        if line.startswith(_STAY):
            told = json.loads(line.removeprefix(_STAY))
            self.stay = told and Stay(**told)
        else:
            self.note = line.decode(errors="replace")

    @property
    def leaves(self) -> Stay | None:
        """What stays, because it was killed."""
        return None if self._is_orderly or self.note != UNKNOWN else self.stay

    def gone(self, agent: str) -> str:
        """That it had no time for words; `agent`: see `agent_behind`."""
        why = f"Ray ended it{agent}" if agent else "it was killed, or Ray ended it"
        return f"slime: the run's process (pid {self.pid}) ended without a word: {why}."

    def last_words(self, agent: str) -> str:
        """The line of a driver that had no time for any; empty for one that had."""
        if self._is_orderly:
            return ""
        return f"{self.gone(agent)} {AGAIN}" if self.note == UNKNOWN else self.note


def main(mark: str, greeting: str) -> None:
    """Watch until standard input ends, then kill what is left of the family, and remove what it has left; before that,
    where it is to stay, wait for another driver, and watch that."""
    driver: _Driver | None = _Driver(sys.stdin.buffer, **json.loads(greeting))
    family, record = set[psutil.Process](), None
    while driver:
        family = driver.watch(family)
        agent = agent_behind_all(mark)
        words, gone, stay, driver = driver.last_words(agent), driver.gone(agent), driver.leaves, None
        record = stay.record if stay else record
        if stay and not agent:  # with an agent its raylet ends, and all of Ray
            said = f"What it ran stays for {stay.seconds:g} s: the same command takes it over, and"
            sys.stderr.write(f"{gone} {said} 'kill {os.getpid()}' ends it now.\n")
            driver = _await_driver(stay, mark, family)
            words = f"slime: what it ran is ended. {AGAIN}"
    for _ in range(2):  # one that ends in the first round may have started another meanwhile
        _end(family | _marked(mark))
    clear_all(mark)
    if record:
        Path(record).unlink(missing_ok=True)
    if words:
        sys.stderr.write(f"{words}\n")


def _await_driver(stay: Stay, mark: str, family: set[psutil.Process]) -> _Driver | None:
    """End what does not stay, and return the driver that calls in time. None: none did, or Ray has ended, or this
    process got a SIGTERM."""
    deadline = time.monotonic() + stay.seconds
    with contextlib.suppress(KeyboardInterrupt), _interrupted_by_sigterm(), socket.socket(socket.AF_UNIX) as door:
        door.bind(f"{stay.door}.new")
        door.listen(1)
        Path(f"{stay.door}.new").rename(stay.door)  # a door that is there is open
        door.settimeout(LOOK_S)
        family = family | _marked(mark)
        rays = {process for process in family if process.pid in stay.pids}
        _end(family - rays.union(*(_descendants(pid) for pid in stay.pids)))
        while time.monotonic() < deadline and sum(map(is_alive, rays)) == len(stay.pids):
            with contextlib.suppress(TimeoutError):
                called, _ = door.accept()
                called.settimeout(ANSWER_S)
                greeting = json.loads(called.makefile().readline())
                called.sendall(b"\n")
                return _Driver(called, **greeting)
    return None


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(family: set[psutil.Process]) -> None:
    """Wait for processes, and kill those that do not end by themselves."""
    alive = wait_until_gone(family, GRACE_S)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    wait_until_gone(alive, GRACE_S)


def wait_until_gone(family: set[psutil.Process], timeout_s: float) -> set[psutil.Process]:
    """Wait for processes to end, at most `timeout_s` seconds; returns those that are still alive."""
    deadline = time.monotonic() + timeout_s
    while (family := {process for process in family if is_alive(process)}) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return family


def is_alive(process: psutil.Process) -> bool:
    """Zombies count as dead: a living driver may not have reaped them yet."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _marked(mark: str) -> set[psutil.Process]:
    """Processes that were started in the block, whatever their parent is now. Ray's agents write their names over their
    environment, and are known by their logs."""
    found, logs = set(), f"/{PREFIX}{mark}-"
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it ended, or is another user's
            is_agent = process.name().startswith("ray::")
            if process.environ().get(_MARK) == mark or (
                is_agent and any(logs in file.path for file in process.open_files())
            ):
                found.add(process)
    return found


def _descendants(driver: int) -> set[psutil.Process]:
    try:
        return {child for child in psutil.Process(driver).children(recursive=True) if child.pid != os.getpid()}
    except psutil.NoSuchProcess:  # it ends just now, and standard input with it
        return set()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
