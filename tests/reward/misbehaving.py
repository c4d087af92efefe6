"""A reward that does what the response says, good or bad, in real workers: for tests, and for what measures rewards."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

from guarded_workers import wire
from guarded_workers.processes import ZOMBIE, children, state
from slime.hookspecs import hookimpl
from slime.reward.verdicts import fields
from slime.types import Prompt, Sample, Verdict, VerdictKind

CHILD = "import os, time; os.setsid() if {daemon} else None; time.sleep(1000)"
METADATA = "Metadata-Version: 2.1\nName: reward-zoo\nVersion: 1.2\n"


def install(site: Path) -> None:
    """Make `site` a folder that has this module as distribution `reward-zoo 1.2`, once it is on `sys.path`."""
    (site / "misbehaving.py").symlink_to(Path(__file__).resolve())
    info = site / "reward_zoo-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text("[slime]\nzoo = misbehaving\n")


def sample(behaviour: str, label: Any = None) -> Sample:
    """A sample on which `Misbehaving` does `behaviour`."""
    return Sample(Prompt("0/0", (), (1, 2), label), 0, response=behaviour)


class MakesAFolder:
    """Makes the folder `path` where its pickle is loaded."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._path,)


FORGED = 777.0
"""The value that forged answers claim."""


def forged(number: int) -> bytes:
    return wire.encode(wire.Answer(number, fields(Verdict.of(FORGED))))


class Misbehaving:
    """`sample.response` names the method; `sample.prompt.label` is its argument."""

    def __init__(self, greeting: str = "hello", helper: bool = False) -> None:
        self.greeting = greeting
        self.hoard: list[bytearray] = []
        self.helper = subprocess.Popen([sys.executable, "-c", CHILD.format(daemon=False)]) if helper else None

    def score(self, sample: Sample) -> Verdict:
        if sample.response == "sizes":
            [segment] = sample.segments
            return Verdict.of(0.0, tokens=len(segment.tokens), logprobs=len(segment.logprobs), spans=len(segment.spans))
        return getattr(self, sample.response)(sample.prompt.label)  # type: ignore[no-any-return]

    def value(self, number: float) -> Verdict:
        return Verdict.of(number, length=3)

    def echo(self, label: Any) -> Any:
        return label

    def greet(self, _: Any) -> Verdict:
        return Verdict.invalid(self.greeting)

    def modules(self, names: list[str]) -> Verdict:
        return Verdict.of(0.0, **{name: float(name in sys.modules) for name in names})

    def process_id(self, _: Any) -> Verdict:
        return Verdict.of(os.getpid())

    def fail(self, message: str) -> Verdict:
        raise ZeroDivisionError(message)

    def fail_below(self, _: Any) -> Verdict:
        return Verdict.of(float(Path("\0").read_text()))

    def sleep(self, seconds: float) -> Verdict:
        time.sleep(seconds)
        return Verdict.of(seconds)

    def hang_holding_the_gil(self, _: Any) -> Verdict:
        return Verdict.of(ctypes.PyDLL(None).pause())

    def hang_deaf_to_signals(self, _: Any) -> Verdict:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        return self.sleep(1000)

    def hang_with_children(self, pid_file: str) -> Verdict:
        """Writes the ids of this process, a child and a grandchild's daemon, then hangs."""
        children = [subprocess.Popen([sys.executable, "-c", CHILD.format(daemon=daemon)]) for daemon in (False, True)]
        Path(pid_file).write_text(" ".join(str(pid) for pid in [os.getpid(), *(child.pid for child in children)]))
        return self.sleep(1000)

    def wait_for(self, file: str) -> Verdict:
        while not Path(file).exists():
            time.sleep(0.01)
        return Verdict.of(1.0)

    def segfault_with_a_daemon(self, pid_file: str) -> Verdict:
        daemon = subprocess.Popen([sys.executable, "-c", CHILD.format(daemon=True)])
        Path(pid_file).write_text(str(daemon.pid))
        return self.segfault(None)

    def segfault(self, _: Any) -> Verdict:
        return Verdict.of(ctypes.string_at(0)[0])

    def kill_itself(self, number: int) -> Verdict:
        os.kill(os.getpid(), number)
        return self.sleep(1000)

    def leave(self, code: int) -> Verdict:
        sys.exit(code)

    def grow(self, mib: int) -> Verdict:
        self.hoard.append(bytearray(mib * 2**20))
        return Verdict.of(len(self.hoard))

    def chatter(self, _: Any) -> Verdict:
        os.write(1, b"\x00\x00\x00\x00\x00\x00\x00\x02hi")
        sys.stdout.write("noise\n")
        sys.stdout.flush()
        return Verdict.of(len(sys.stdin.read()))

    def fork_and_return(self, _: Any) -> Verdict:
        pid = os.fork()
        return Verdict.of(pid)

    def vanish(self, code: int) -> Verdict:
        os._exit(code)

    def grow_slowly(self, mib: int) -> Verdict:
        for _ in range(mib):
            self.grow(1)
        return Verdict.of(mib)

    def breed(self, sizes_mib: list[int]) -> Verdict:
        """Forks one child a size, which takes so much memory and keeps it; waits for them."""
        for mib in sizes_mib:
            if not (pid := os.fork()):
                self.hoard.append(bytearray(b"x") * (mib * 2**20))
                time.sleep(1000)
        return Verdict.of(os.waitpid(pid, 0)[1])

    def breed_and_wait(self, count: int) -> Verdict:
        """Children that sleep a while, so that they are looked at."""
        pids = [os.fork() or os._exit(time.sleep(0.5) or 0) for _ in range(count)]
        for pid in pids:
            os.waitpid(pid, 0)
        return Verdict.of(count)

    def multiply(self, generations: int) -> Verdict:
        """Every process forks one in every generation, and none ends."""
        for _ in range(generations):
            os.fork()
        return self.sleep(1000)

    def fork_loop(self, begun: str) -> Verdict:
        """As `multiply`, in sessions of their own; every process that begins adds a byte to the file `begun`."""
        for _ in range(10):  # 1,023 processes, where nothing holds them: enough to see, and no machine dies of it
            if not os.fork():
                os.setsid()
                _add_byte(begun)
        return self.sleep(1000)

    def run_away(self, steps: str) -> Verdict:
        """A daemon that goes on in a child of its own, again and again: each adds a byte to the file `steps`."""
        if os.fork():
            return Verdict.of(1.0)
        for _ in range(20_000):
            if os.fork():
                os._exit(0)
            os.setsid()
            _add_byte(steps)
        os._exit(0)

    def start_threads(self, count: int) -> Verdict:
        end = threading.Event()
        threads = [threading.Thread(target=end.wait) for _ in range(count)]
        for thread in threads:
            thread.start()
        running = sum(thread.is_alive() for thread in threads)
        end.set()
        return Verdict.of(running)

    def write_files(self, mib: int) -> Verdict:
        """Half to shared memory, half to a temporary file; gives their names."""
        names = [f"/dev/shm/zoo-{os.getpid()}", tempfile.mkstemp()[1]]
        for name in names:
            with open(name, "wb") as file:
                for _ in range(mib // 2):
                    file.write(bytes(2**20))
        time.sleep(0.5 if mib < 256 else 1000)  # a few looks of the guard, which ends what is too much
        return Verdict.invalid(" ".join(names))

    def map_shared_memory(self, mib: int) -> Verdict:
        memory = shared_memory.SharedMemory(create=True, size=mib * 2**20)
        assert memory.buf
        for start in range(0, mib * 2**20, 2**20):
            memory.buf[start : start + 2**20] = bytes(2**20)
        time.sleep(0.5)  # as above
        memory.close()
        memory.unlink()
        return Verdict.of(mib)

    def read_text(self, path: str) -> Verdict:
        return Verdict.invalid(Path(path).read_text())

    def variable(self, name: str) -> Verdict:
        return Verdict.invalid(os.environ[name])

    def leave_behind(self, count: int, pid_file: str = os.devnull) -> Verdict:
        """Forks `count` daemons and `count` children that sleep, and answers."""
        pids = [self._sleeper(daemon=daemon) for daemon in (False, True) for _ in range(count)]
        Path(pid_file).write_text(" ".join(str(pid) for pid in pids))
        return Verdict.of(count)

    def leave_behind_and_tell(self, pid_file: str) -> Verdict:
        return self.leave_behind(2, pid_file)

    def _sleeper(self, *, daemon: bool) -> int:
        """Forks a process that sleeps; a daemon is nobody's child here, and of another session. Its id."""
        ours, theirs = os.pipe()
        if not (child := os.fork()):
            if daemon:
                os.setsid()
            if daemon and os.fork():
                os._exit(0)
            os.write(theirs, str(os.getpid()).encode())
            time.sleep(1000)
        pid = int(os.read(ours, 20))
        os.close(ours)
        os.close(theirs)
        if daemon:
            os.waitpid(child, 0)
        return pid

    def zombies(self, _: Any) -> Verdict:
        return Verdict.of(sum(state(pid) == ZOMBIE for pid in children(os.getpid())))

    def helper_lives(self, _: Any) -> Verdict:
        assert self.helper is not None
        return Verdict.of(self.helper.poll() is None)

    def write_much(self, mib: int) -> Verdict:
        for _ in range(mib):
            os.write(1, b"x" * 2**20)
        return Verdict.of(mib)

    def kill_guard(self, number: int) -> Verdict:
        os.kill(os.getppid(), number)
        return Verdict.of(number)

    def write_everywhere(self, data: bytes) -> Verdict:
        for fd in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2}:
            with suppress(OSError):
                os.write(fd, data)
        return Verdict.of(FORGED)

    def forge_answers(self, _: Any) -> Verdict:
        return self.write_everywhere(b"".join(forged(number) for number in range(64)))

    def forge_pickle(self, folder: str) -> Verdict:
        body = pickle.dumps(MakesAFolder(folder))
        return self.write_everywhere(struct.pack("!I", len(body)) + body)

    def forge_own_answer(self, then: str) -> Verdict:
        """As `forge_answers`, with the number of this very sample, found in a caller's frame; goes on with `then`."""
        frame = sys._getframe()
        while "line" not in frame.f_locals:
            assert frame.f_back
            frame = frame.f_back
        self.write_everywhere(forged(frame.f_locals["line"]._number))
        time.sleep(0.5)  # for the service to take it, and to ask for the next sample's
        answer: Verdict = getattr(self, then)(1000)
        return answer

    def close_every_file(self, _: Any) -> Verdict:
        os.closerange(3, 1024)
        return Verdict.of(1.0)

    def unfinite_part(self, _: Any) -> Verdict:
        return Verdict.of(1.0, fluency=float("nan"))

    def odd_kind(self, _: Any) -> Verdict:
        return Verdict("perhaps", reason="not a kind")  # type: ignore[arg-type]

    def long_reason(self, _: Any) -> Verdict:
        return Verdict(VerdictKind.INVALID, reason="word \n" * 10_000)


class Together:
    def score_group(self, samples: list[Sample]) -> Any:
        if samples[0].response:
            return getattr(Misbehaving(), samples[0].response)(samples[0].prompt.label)
        return [Verdict.of(each.index, size=len(samples)) for each in samples]


def _add_byte(path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, b".")
    os.close(file)


def breeds(count: int = 0) -> Any:
    """A factory that keeps processes."""
    for _ in range(count):
        if not os.fork():
            time.sleep(1000)
    return Misbehaving()


def needs_a_missing_package(**_: Any) -> Any:
    import no_such_package

    return no_such_package


def dies_at_birth() -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)


@hookimpl
def slime_rewards() -> Any:
    return {
        "misbehaving": Misbehaving,
        "together": Together,
        "unimportable": needs_a_missing_package,
        "stillborn": dies_at_birth,
        "breeder": breeds,
    }
