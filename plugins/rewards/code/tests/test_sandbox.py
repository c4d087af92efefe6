"""What a program that nobody trusts tries, in three settings; each attempt is refused by the kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from slime.types import Verdict
from slime_plugin_code import sandbox
from slime_plugin_code.sandbox import Spec, UnconfinedError, run
from slime_testing.plugins import RewardCase, check_reward

ESCAPES = {
    "a socket of the network": "import socket; socket.create_connection(('127.0.0.1', VICTIM_PORT))",
    "a datagram": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "a unix socket": "import socket; socket.socket(socket.AF_UNIX)",
    "netlink": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "reading a file": "open('VICTIM_FILE').read()",
    "reading passwords": "open('/etc/passwd').read()",
    "listing a folder": "import os; os.listdir('/')",
    "writing a file": "open('VICTIM_FILE', 'w').write('x')",
    "truncating a file": "import os; os.truncate('VICTIM_FILE', 0)",
    "changing rights": "import os; os.chmod('VICTIM_FILE', 0o777)",
    "changing times": "import os; os.utime('VICTIM_FILE')",
    "removing a file": "import os; os.remove('VICTIM_FILE')",
    "renaming a file": "import os; os.rename('VICTIM_FILE', 'VICTIM_FILE.2')",
    "a link": "import os; os.symlink('/etc/passwd', 'here')",
    "a file in its folder": "open('here', 'w')",
    "shared memory": "open('/dev/shm/slime', 'w')",
    "memory without a file": "import os; os.memfd_create('x')",
    "a process": "import os; os.fork()",
    "a program": "import subprocess; subprocess.run(['/bin/true'])",
    "another program in its place": "import os; os.execv('/bin/true', ['true'])",
    "killing another process": "import os; os.kill(VICTIM_PID, 9)",
    "killing all": "import os; os.kill(-1, 9)",
    "another process's memory": "open('/proc/VICTIM_PID/mem', 'rb')",
    "another process's environment": "open('/proc/VICTIM_PID/environ').read()",
    "another process's descriptors": "import os; os.pidfd_open(VICTIM_PID)",
    "another process's limits": "import resource; resource.prlimit(VICTIM_PID, resource.RLIMIT_NOFILE, (1, 1))",
    "another process's priority": "import os; os.setpriority(os.PRIO_PROCESS, VICTIM_PID, 19)",
    "ptrace": "call(101, 16, VICTIM_PID, 0, 0)",
    "a namespace": "call(272, 0x10000000)",
    "a mount": "call(165, 0, b'/', 0, 4096, 0)",
    "keys of the kernel": "call(250, 0, -3, 0)",
    "io_uring": "call(425, 1, 0)",
    "bpf": "call(321, 0, 0, 0)",
    "another user": "import os; os.setuid(0) if os.geteuid() else os.setgroups([0])",
    "higher limits": "import resource; resource.setrlimit(resource.RLIMIT_CPU, (60, 60))",
    "clone3, which the filter cannot see into": "call(435, bytes(88), 88)",
}
"""Each raises OSError or ValueError."""
LIMITS = {
    "processor time": ("while True: pass", "processor time"),
    "sleep": ("import time; time.sleep(60)", "it waited too long"),
    "memory": ("x = bytearray(4 << 30)", "it ended with 1"),
    "output": ("import os\nwhile True: os.write(1, b'x' * 65536)", "it "),
    "threads": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "it ",
    ),
    "crash": ("import ctypes; ctypes.string_at(0)", "it ended with -11"),
}
_CALL = """
def call(number, *arguments):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")
"""
_TRY = """
try:
    {attempt}
except (OSError, ValueError) as error:
    print("refused", error)
else:
    print("done")
"""
_ALL = """
import json, sys
from slime_plugin_code.sandbox import Spec, run
print(json.dumps({name: run(Spec(code)).output for name, code in json.load(sys.stdin).items()}))
"""
SETTINGS = {
    "plain": ([], None),
    "an ordinary user": ([], 65534),
    "namespaces, as in a container": (["unshare", "--user", "--map-root-user", "--net", "--ipc"], None),
}

pytestmark = pytest.mark.skipif(bool(sandbox.missing()), reason=f"this machine has no sandbox: {sandbox.missing()}")


@pytest.fixture(scope="module", params=SETTINGS)
def attempts(request, tmp_path_factory):
    """What each escape printed, tried in this setting. The victim is a process of the same user."""
    prefix, user = SETTINGS[request.param]
    if user is not None and os.geteuid():
        pytest.skip("only root may start processes of an ordinary user")
    try:
        subprocess.run([*prefix, sys.executable, "-c", "import slime"], user=user, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"{request.param}: this machine does not permit it, or Python cannot be read then: {error}")
    with victim(user) as (codes, is_unhurt):
        done = subprocess.run(
            [*prefix, sys.executable, "-c", _ALL], input=json.dumps(codes), text=True, user=user, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) | {"the victim": "unhurt" if is_unhurt() else "hurt"}


@contextmanager
def victim(user: int | None = None):
    """The programs that try to escape, to a process and a file of the same user; and whether those are unhurt."""
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(["sleep", "600"], user=user) as process:
        file = Path(folder) / "file"
        file.write_text("mine")
        Path(folder).chmod(0o777)
        file.chmod(0o666)
        known = {"VICTIM_FILE": str(file), "VICTIM_PID": str(process.pid), "VICTIM_PORT": "22"}
        codes = {name: _CALL + _TRY.format(attempt=attempt) for name, attempt in ESCAPES.items()}
        for word, value in known.items():
            codes = {name: code.replace(word, value) for name, code in codes.items()}
        try:
            yield codes, lambda: process.poll() is None and file.read_text() == "mine"
        finally:
            process.kill()


@pytest.mark.parametrize("name", ESCAPES)
def test_an_escape_is_refused(attempts, name):
    assert attempts[name].startswith("refused"), attempts[name]


def test_nothing_happened_outside(attempts):
    assert attempts["the victim"] == "unhurt"


@pytest.mark.timeout(300)
def test_every_escape_is_refused_below_a_run_s_reward():
    """In the worker processes that a run starts, below their guard and in their room."""
    label = {"inputs": [""], "outputs": ["refused"]}
    with victim() as (codes, is_unhurt):
        short = [code.replace('print("refused", error)', 'print("refused")') for code in codes.values()]
        right = Verdict.of(1.0, tests_passed=1.0)
        check_reward("code", [RewardCase(f"```python\n{code}\n```", label, right) for code in short])
        assert is_unhurt()


@pytest.mark.parametrize("name", LIMITS)
def test_a_program_that_takes_too_much_ends(name, monkeypatch):
    code, fault = LIMITS[name]
    if name != "sleep":  # a busy machine may give it less than the quarter of a core that the clock's limit counts on
        monkeypatch.setattr(Spec, "wall_s", 100)
    assert run(Spec(code, cpu_s=1, memory_mb=256)).fault.startswith(fault if fault.startswith("it ") else "it took")


def test_what_a_program_needs_works():
    code = "import numpy, asyncio, decimal\nasyncio.run(asyncio.sleep(0))\nprint(numpy.eye(int(input())).sum())"
    assert run(Spec(code), "3\n") == ("3.0\n", "")


def test_the_program_sees_no_environment(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    assert "secret" not in run(Spec("import os; print(dict(os.environ))")).output


def test_it_fails_closed(monkeypatch):
    """A machine without Landlock runs nothing, unless it is told to."""
    monkeypatch.setattr(sandbox, "missing", lambda: "the kernel has none")
    with pytest.raises(UnconfinedError, match="the kernel has none"):
        run(Spec("print(1)"))
    assert run(Spec("print(open('/etc/passwd').read()[:4])", unconfined=True)).output == "root\n"
