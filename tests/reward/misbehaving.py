"""A reward that does what the response says, good or bad; run in real workers by the tests of the service."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from slime.hookspecs import hookimpl
from slime.types import Sample, Verdict, VerdictKind

CHILD = "import os, time; os.setsid() if {daemon} else None; time.sleep(1000)"


class Misbehaving:
    """`sample.response` names the method; `sample.prompt.label` is its argument."""

    def __init__(self, greeting: str = "hello") -> None:
        self.greeting = greeting
        self.hoard: list[bytearray] = []

    def score(self, sample: Sample) -> Verdict:
        answer: Verdict = getattr(self, sample.response)(sample.prompt.label)
        return answer

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

    def close_every_file(self, _: Any) -> Verdict:
        os.closerange(3, 1024)
        return Verdict.of(1.0)

    def unfinite_part(self, _: Any) -> Verdict:
        return Verdict.of(1.0, fluency=float("nan"))

    def odd_kind(self, _: Any) -> Verdict:
        return Verdict("perhaps", reason="not a kind")  # type: ignore[arg-type]

    def long_reason(self, _: Any) -> Verdict:
        return Verdict(VerdictKind.INVALID, reason="word \n" * 10_000)


def needs_a_missing_package(**_: Any) -> Any:
    import no_such_package

    return no_such_package


def dies_at_birth() -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)


@hookimpl
def slime_rewards() -> Any:
    return {"misbehaving": Misbehaving, "unimportable": needs_a_missing_package, "stillborn": dies_at_birth}
