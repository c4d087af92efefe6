"""Runs and verbs that are interrupted at random moments of their whole life: a table of `chaos.py`."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
from chaos_kinds import RUNS, VERBS, make, words_of, write_files
from chaos_parts import SEED, Table, folder
from chaos_run import KEPT, OWN_SHARED_MEMORY

from slime.net import LOOPBACK

TIMES, AT_ONCE = 9, 3
"""How often each kind is interrupted, and how many run beside each other."""
CHAIN = 3
"""Times that a command is interrupted and started again in the same folder."""
ENDS_S, GONE_S, HUNG_S = 30.0, 20.0, 60.0
"""Seconds in which it ends, in which all that it has started is gone, and after which it is held to hang."""
REACHED_S = 240.0
WAYS = {
    "SIGINT": (False, signal.SIGINT, 1),
    "SIGTERM": (False, signal.SIGTERM, 1),
    "Ctrl-C": (True, signal.SIGINT, 1),
    "SIGTERM to its group": (True, signal.SIGTERM, 1),
    "SIGINT twice": (False, signal.SIGINT, 2),
    "Ctrl-C twice": (True, signal.SIGINT, 2),
    "SIGTERM twice": (False, signal.SIGTERM, 2),
}
"""Whether the whole process group gets it, as by a terminal; which signal; how often."""
BETWEEN_S = (0.05, 0.5, 1.0)
SPANS_S = {"": 35.0, "ready: ": 15.0, "rl 1/": 5.0}
"""What a run has said when the time begins in which the moment lies, and how long that is; less for one that ended."""
VERB_S = 12.0
DONE = ("load the model: ", "wrote out", "report.html")
"""Words of the last line of what has been done; Python alone is still ending."""


@dataclass(frozen=True)
class Ended:
    """How one interrupt ended.

    Attributes:
        in_time: the signal came before the command had ended by itself.
        faults: what is not as promised.
    """

    kind: str
    way: str
    in_time: bool
    code: int
    seconds: float
    faults: Sequence[str]


class Command:
    """One `slime` command in a folder of its own, started again and again."""

    def __init__(
        self, kind: str, place: Path, made: Path, silent: str, more: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self.kind, self.place, self.words = kind, place, words_of(kind, made, silent, more)
        self.scratch, self.shared, self.output = place / "t", place / "shm", place / "output.txt"
        self.scratch.mkdir()
        self.shared.mkdir()
        write_files(place)
        self.through: Sequence[str] = ["unshare", "--mount", "sh", "-c", OWN_SHARED_MEMORY, str(self.shared)]
        self.environment = {"TMPDIR": str(self.scratch), "OMP_NUM_THREADS": "1"}

    def start(self) -> None:
        shutil.rmtree(self.place / "out", ignore_errors=True)  # which a conversion does not write into
        self.output.write_bytes(b"")
        with self.output.open("ab") as output:  # a process of the start before may still write, too
            self.process = subprocess.Popen(
                [*self.through, sys.executable, "-m", "slime", *self.words],
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **self.environment},
            )

    def wait(self, seconds: float, until: str | None = None) -> None:
        """For its end, or for what it says."""
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end and (until is None or until not in self.text()):
            time.sleep(0.01)

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def signal(self, number: signal.Signals, *, to_group: bool) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number) if to_group else self.process.send_signal(number)

    def members(self) -> set[psutil.Process]:
        """All processes that it has started and that live, by their temporary folder, folder and session."""
        found = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):  # it has ended
                mine = process.environ().get("TMPDIR") == str(self.scratch)
                mine |= process.cwd().startswith(str(self.place)) or os.getsid(process.pid) == self.process.pid
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.add(process)
        return found

    def strays(self) -> set[psutil.Process]:
        end = time.monotonic() + GONE_S
        while (left := self.members()) and time.monotonic() < end:
            time.sleep(0.3)
        return left

    def litter(self) -> list[Path]:
        left = [*self.scratch.iterdir(), *self.shared.iterdir()]
        return [path for path in left if not path.name.startswith(KEPT)]


def interrupt(command: Command, dice: random.Random, spans: dict[tuple[str, str, bool], float]) -> Ended:
    """Start it and interrupt it once, at a moment and in a way that the dice choose."""
    is_run, way = command.kind in RUNS, dice.choice([*WAYS])
    said = dice.choice(["", "ready: ", "ready: ", "rl 1/"]) if is_run else ""
    known = (command.kind, said, (command.place / "runs/it/checkpoints").exists())
    after = dice.random() * spans.get(known, SPANS_S[said] if is_run else VERB_S)
    command.start()
    command.wait(REACHED_S, said or None) if said else None
    began = time.monotonic()
    command.wait(after)
    in_time = command.process.poll() is None
    if not in_time:
        spans[known] = max(time.monotonic() - began, 1.0)
    was_done = any(words in (command.text().splitlines() or [""])[-1] for words in DONE)
    to_group, number, times = WAYS[way]
    sent = time.monotonic()
    for index in range(times if in_time else 0):
        time.sleep(dice.choice(BETWEEN_S) if index else 0)
        command.signal(number, to_group=to_group)
    command.wait(HUNG_S)
    seconds = time.monotonic() - sent
    faults = [] if command.process.poll() is not None else ["hangs"]
    if faults:
        command.process.kill()
    code = command.process.wait()
    forced = times > 1 or was_done or not command.text()
    faults += [] if faults else [*odd(command, code, forced=forced), *(["slow"] if seconds > ENDS_S else [])]
    for stray in command.strays():
        faults.append("strays")
        with suppress(psutil.NoSuchProcess):
            stray.kill()
    for path in command.litter():
        faults.append("litter")
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    ended = Ended(command.kind, way, in_time, code, seconds, sorted(set(faults)))
    print(f"{ended} {command.text() if faults else ''}", file=sys.stderr, flush=True)
    return ended


def odd(command: Command, code: int, *, forced: bool) -> Iterator[str]:
    """What is not as promised in how it ended.

    Args:
        forced: it may be ended by the signal itself: by a second one, before its first line or behind its last.
    """
    text = command.text()
    last = (text.splitlines() or [""])[-1]
    if any(words in text for words in ("Traceback", "Exception ignored", "Fatal Python")):
        yield "traceback"
    told = last.startswith("slime: interrupted")
    quiet = forced and code in (-signal.SIGINT, -signal.SIGTERM)
    if not (code == 0 or quiet or (told and code in (130, -signal.SIGINT))):  # Python's, of code made from text
        yield f"exit {code}" if code != 130 else "last line"


def rounds(number: int, kind: str, made: Path, silent: str, spans: dict[tuple[str, str, bool], float]) -> list[Ended]:
    """Interrupt a command several times in the same folder; it goes on each time, and a run at last to its end."""
    dice = random.Random(f"{SEED} {number}")
    with folder() as place:
        command = Command(kind, place, made, silent)
        ended = [interrupt(command, dice, spans) for _ in range(CHAIN)]
        if kind in RUNS and dice.random() < 1 / CHAIN:
            command.start()
            command.wait(REACHED_S)
            if command.process.poll() != 0:
                command.process.kill()
                ended.append(Ended(kind, "nothing", True, command.process.wait(), 0, ["does not go on"]))
    return ended


def interrupts() -> Table:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # commands of a script's background would ignore it
    kinds = [*RUNS, *VERBS]
    turns = [kind for _ in range(TIMES // CHAIN) for kind in kinds]
    spans: dict[tuple[str, str, bool], float] = {}
    with folder() as made, socket.create_server((LOOPBACK, 0)) as silent, ThreadPoolExecutor(AT_ONCE) as pool:
        make(made)
        url = f"http://{LOOPBACK}:{silent.getsockname()[1]}"
        done = pool.map(lambda turn: rounds(*turn, made, url, spans), enumerate(turns))
        ended = [one for several in done for one in several if one.in_time or one.faults]
    rows = [row(kind, [one for one in ended if one.kind == kind]) for kind in kinds]
    return [["what", "interrupts", "twice", "ended after, at most", "not as promised"], *rows, row("all", ended)]


def row(name: str, ended: Sequence[Ended]) -> Sequence[str]:
    faults = [f"{one.way}: {', '.join(one.faults)}" for one in ended if one.faults]
    twice = sum(one.way.endswith("twice") for one in ended)
    longest = max((one.seconds for one in ended), default=0.0)
    return [name, str(len(ended)), str(twice), f"{longest:.0f} s", "; ".join(faults) or "-"]
