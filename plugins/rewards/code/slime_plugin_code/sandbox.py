"""Runs a program that nobody trusts, confined by the kernel (`confine.py`), or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from slime_plugin_code import confine

WALL_PER_CPU = 4
"""How much longer than its processor time a program may take by the clock; a busy machine is not its fault."""
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/usr/share/zoneinfo",
           "/dev/null", "/dev/zero", "/dev/urandom")  # fmt: skip


def _readable() -> list[str]:
    paths = sysconfig.get_paths()
    return [*{paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"]}, *_SYSTEM]


@dataclass(frozen=True)
class Spec:
    """One program.

    Attributes:
        code: Python.
        call: an expression that is evaluated behind the code, whose repr is the output; None: the output is what it
            prints.
        cpu_s: seconds of processor time.
        memory_mb: MiB by which it may grow.
        output_bytes: more output ends it.
        unconfined: run it with limits alone.
    """

    code: str
    call: str | None = None
    cpu_s: int = 5
    memory_mb: int = 512
    output_bytes: int = 1 << 20
    unconfined: bool = False
    path: list[str] = field(default_factory=lambda: [entry for entry in sys.path if entry])
    readable: list[str] = field(default_factory=_readable)

    @property
    def wall_s(self) -> float:
        """Seconds by the clock."""
        return WALL_PER_CPU * self.cpu_s + 2


class Ended(NamedTuple):
    """How a program ended.

    Attributes:
        output: text; what is no UTF-8 is replaced.
        fault: empty if it ended by itself with exit code 0.
    """

    output: str
    fault: str = ""


class NotRunError(Exception):
    """A program was not run; says why."""


class UnconfinedError(NotRunError):
    """The machine does not permit to confine it."""


@cache
def missing() -> str:
    """What the machine lacks for the sandbox, in words; empty if nothing."""
    return confine.lacks()


def run(spec: Spec, given: str = "") -> Ended:
    """Run a program.

    Args:
        given: its standard input.

    Raises:
        UnconfinedError: it was not run.
    """
    if not spec.unconfined and (lacks := missing()):
        raise UnconfinedError(lacks)
    body = json.dumps(asdict(spec)).encode()
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as output, tempfile.TemporaryDirectory() as empty:
        source.write(b"%010d" % len(body) + body + given.encode(errors="replace"))
        source.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", str(Path(confine.__file__))],
            stdin=source,
            stdout=output,
            stderr=subprocess.DEVNULL,
            cwd=empty,
            env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            fault = _fault(process.wait(spec.wall_s), spec)
        except subprocess.TimeoutExpired:
            fault = "it waited too long"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        return Ended(output.read(spec.output_bytes).decode(errors="replace"), fault)


def _fault(code: int, spec: Spec) -> str:
    if code == confine.REFUSED:
        raise UnconfinedError("the kernel refused to confine a program")
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"it took more than {spec.cpu_s} s of processor time"
    if code == -signal.SIGXFSZ:
        return f"it wrote more than {spec.output_bytes} bytes"
    return f"it ended with {code}" if code else ""
