"""What a program that nobody trusts tries, in several settings: the kernel refuses each, and does it outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from plugins.rewards.tests.code.escapes import ESCAPES, NO_CONTROL, THREADS, TRY_ALL, as_nobody, victim
from slime_rewards.code import confine, sandbox
from slime_rewards.code.sandbox import Features, NotRunError, Spec, UnconfinedError, run
from slime_testing.patience import Patience
from slime_testing.plugins import RewardCase, check_reward

LIMITS = {
    "processor time": ("while True: pass", "processor time"),
    "sleep": ("import time; time.sleep(60)", "it waited too long"),
    "memory": ("x = bytearray(4 << 30)", "it ended with 1"),
    "output": ("import os\nwhile True: os.write(1, b'x' * 65536)", "it "),
    "threads": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "it ",
    ),
    "threads on one stack": (THREADS, "it had more than 512 threads"),
    "crash": ("import ctypes; ctypes.string_at(0)", "it ended with -11"),
}
_RUN = """
import json, sys
from slime_rewards.code.sandbox import Features, Spec, features, run
code, fewer = json.load(sys.stdin)
used = features()
if fewer:
    used = Features(min(used.landlock, fewer[0]), used.namespaces and fewer[1])
print(json.dumps([used, *run(Spec(code, features=used, cpu_s=20))]))
"""
CONTAINER = ["unshare", "--user", "--map-root-user", "--net", "--ipc"]
NESTED = [*CONTAINER, "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"', "sh"]
SETTINGS = {
    "all": (None, None),
    "no namespaces": (None, (6, False)),
    "no namespaces, no scopes": (None, (3, False)),
    "another user": (as_nobody, None),
    "another user, no namespaces": (as_nobody, (6, False)),
    "another user, no namespaces, no scopes": (as_nobody, (3, False)),
    "namespaces, as in a container": (CONTAINER, None),
    "a container that permits none": (NESTED, None),
}

pytestmark = pytest.mark.skipif(bool(sandbox.missing()), reason=f"this machine has no sandbox: {sandbox.missing()}")


@pytest.fixture(scope="module", params=SETTINGS)
def attempts(request, tmp_path_factory):
    """What came of each escape in this setting, and of the victim, which is a process of the same user."""
    prefix, fewer = SETTINGS[request.param]
    user = 65534 if prefix is as_nobody else None
    if user and os.geteuid():
        pytest.skip("only root may start processes of another user")
    prefix = as_nobody(tmp_path_factory.mktemp("python")) if user else prefix or []
    try:
        subprocess.run([*prefix, sys.executable, "-c", "import slime"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"{request.param}: this machine does not permit it, or Python cannot be read then: {error}")
    with victim(user) as (codes, harm):
        given = json.dumps([TRY_ALL.format(codes=codes), fewer])
        words = [*prefix, sys.executable, "-c", _RUN]
        done = subprocess.run(words, input=given, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        used, output, fault, _ = json.loads(done.stdout)
        assert fault == ""
        return json.loads(output) | {"the victim": harm(), "features": used, "setting": request.param}


@pytest.mark.parametrize("name", ESCAPES)
def test_an_escape_is_refused(attempts, name):
    assert attempts[name].startswith("refused"), attempts[name]


def test_nothing_happened_outside(attempts):
    assert attempts["the victim"] == []


def test_what_the_machine_permits_is_used(attempts):
    landlock, namespaces = sandbox.features()
    fewer = {"no namespaces": (landlock, False), "no namespaces, no scopes": (3, False)}
    expected = fewer.get(attempts["setting"].removeprefix("another user, "), (landlock, namespaces))
    if attempts["setting"] == "a container that permits none":
        expected = (landlock, False)
    assert tuple(attempts["features"]) == expected


@pytest.mark.parametrize("name", [name for name in ESCAPES if name not in NO_CONTROL])
def test_outside_it_is_done(name):
    """Else a refusal would say nothing of the sandbox."""
    with victim() as (codes, harm):
        ended = run(Spec(f"{codes[name]}\nprint('done')", unconfined=True))
        assert ended.output == "done\n", ended
        if "signal" in name or name == "killing another process":
            assert Patience(20, list).wait_for(lambda: harm() == ["process"])
        elif name in ("a socket of the network", "a datagram of a pair to a path", "a datagram of a pair to a name"):
            assert harm() != []


@pytest.mark.timeout(300)
def test_every_escape_is_refused_below_a_run_s_reward():
    """In the worker processes that a run starts, below their guard and in their room."""
    label = {"inputs": [""], "outputs": [str(len(ESCAPES))]}
    with victim() as (codes, harm):
        code = TRY_ALL.format(codes=codes).replace("print(json.dumps(outcomes))", "")
        count = 'print(sum(each.startswith("refused") for each in outcomes.values()))'
        check_reward("code", [RewardCase(f"```python\n{code}\n{count}\n```", label, 1.0)])
        assert harm() == []


def test_what_a_plan_promises_holds_below_a_run_s_reward():
    """A process in a PID namespace of its own is its first."""
    label = {"inputs": [""], "outputs": ["True" if sandbox.features().namespaces else "False"]}
    check_reward("code", [RewardCase("```python\nimport os\nprint(os.getpid() == 1)\n```", label, 1.0)])


@pytest.mark.parametrize(
    "end", ["import os; os._exit(97)", "raise SystemExit(97)", "import os; os.kill(os.getpid(), 9)"]
)
def test_no_end_of_a_program_looks_as_if_it_had_not_been_run(end):
    assert run(Spec(f"print('begun', flush=True); {end}")).output == "begun\n"


def test_a_program_that_could_not_be_confined_was_not_run():
    begun = "print('begun')"
    with pytest.raises(UnconfinedError, match="could not be confined: it ended with 1 before the program's first line"):
        run(Spec(begun, features=Features(landlock=99, namespaces=False)))
    assert run(Spec(begun, features=Features(landlock=3, namespaces=False))).output == "begun\n"
    words = [*NESTED, sys.executable, "-c", _RUN.replace("if fewer:", "if True:").replace("used.namespaces and", "")]
    done = subprocess.run(words, input=json.dumps([begun, (6, True)]), text=True, capture_output=True)
    if "Operation not permitted" in done.stderr and "max_user_namespaces" in done.stderr:
        pytest.skip("this machine permits no namespaces")
    assert "UnconfinedError: the program could not be confined: namespaces: No space left on device" in done.stderr


@pytest.mark.parametrize("name", LIMITS)
def test_a_program_that_takes_too_much_ends(name, monkeypatch):
    code, fault = LIMITS[name]
    if name != "sleep":  # a busy machine may give it less than the quarter of a core that the clock's limit counts on
        monkeypatch.setattr(Spec, "wall_s", 100)
    assert run(Spec(code, cpu_s=1, memory_mb=256)).fault.startswith(fault if fault.startswith("it ") else "it took")


def test_the_program_sees_no_environment(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    assert "secret" not in run(Spec("import os; print(dict(os.environ))")).output


@pytest.mark.parametrize("flag", ["os.O_DIRECT", "os.O_APPEND", "os.O_NONBLOCK"])
def test_the_flags_of_the_output_are_the_program_s_alone(flag):
    """They belong to what is opened, and would be those of the reader, too."""
    code = f"import fcntl, os\nprint('x', flush=True)\nfcntl.fcntl(1, fcntl.F_SETFL, os.O_RDWR | {flag})"
    assert run(Spec(code)).output == "x\n"


def test_a_program_reads_its_own_input_alone():
    code = "import os\nos.lseek(0, 0, 0)\nprint(os.read(0, 1 << 20), [n for n in range(64) if opened(n)])"
    opened = "import os\ndef opened(n):\n    try: return bool(os.fstat(n))\n    except OSError: return False\n"
    assert run(Spec(opened + code), "mine").output == "b'mine' [0, 1, 2]\n"


@pytest.fixture
def busy_core():
    """The only core that this process may use, with others that want it, too."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    words = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(words, start_new_session=True) for _ in range(5)]  # a session's share is bounded
    yield
    os.sched_setaffinity(0, cores)
    for each in others:
        each.kill()
        each.wait()


@pytest.mark.usefixtures("busy_core")
def test_a_busy_machine_is_not_the_program_s_fault():
    with pytest.raises(NotRunError, match=r"the machine is too busy: in 3\.\d s it waited \d\.\d s for a processor"):
        run(Spec("while True: pass", cpu_s=60, most_s=3))
    assert run(Spec("import time; time.sleep(60)", most_s=3)).is_late, "it does not want one"


def test_threads_that_keep_each_other_waiting_are_late():
    """A program cannot make the machine look busy: it runs for most of the time by the clock, or for longer."""
    spins = "target=hashlib.pbkdf2_hmac, args=('sha256', b'', b'', 10**9)"
    code = f"import hashlib, threading\nfor _ in range(16): threading.Thread({spins}).start()"
    for _ in range(5):
        with suppress(NotRunError):  # others, such as tests beside this one, may have taken the processors
            assert run(Spec(code, cpu_s=60, memory_mb=1024, most_s=3)).is_late
            return
    if os.getloadavg()[0] > (os.cpu_count() or 1):
        pytest.skip("others take the processors of this machine")
    pytest.fail("threads of its own make the machine look busy")


@pytest.mark.parametrize("most_s", [0.001, 0.01, 0.05])
def test_a_program_that_has_no_time_left_is_late_and_was_run(most_s):
    """Else the one before it, of the same answer, could choose that it has no value."""
    ended = run(Spec("print('begun', flush=True)\nimport time\ntime.sleep(9)", most_s=most_s))
    assert ended.is_late
    assert ended.fault == "it waited too long"


def test_the_queue_of_the_user_s_signals_is_not_filled():
    """The kernel counts those of all processes of a user together: others could queue none."""
    waits = "import os, signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])\n"
    waits += "for _ in range(3000): os.kill(os.getpid(), signal.SIGRTMIN)\ntime.sleep(600)"

    def queued() -> int:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("SigQ"))
        return int(line.split()[1].partition("/")[0])

    before = queued()
    with subprocess.Popen([sys.executable, "-c", waits]) as process:
        assert Patience(30, list).wait_for(lambda: queued() >= before + 3000)
        process.kill()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(run, Spec(waits, most_s=2))
        most = 0
        while not ended.done():
            most = max(most, queued())
            time.sleep(0.01)
    assert ended.result().is_late
    assert most < before + 1000


def test_nothing_is_left_of_a_program():
    code = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
    start = time.monotonic()
    assert run(Spec(code, most_s=1)).output == "begun\n"
    assert time.monotonic() - start < 30
    left = subprocess.run(["pgrep", "-f", confine.__file__], capture_output=True, text=True)
    parents = [Path(f"/proc/{pid}/status").read_text() for pid in left.stdout.split() if Path(f"/proc/{pid}").exists()]
    assert not [each for each in parents if f"PPid:\t{os.getpid()}\n" in each]


@pytest.mark.parametrize("namespaces", sorted({False, sandbox.features().namespaces}))
def test_a_program_ends_with_who_runs_it(namespaces):
    """Also where that is killed, and cannot kill anything."""
    code = "import os, time\nos.write(1, b'begun')\ntime.sleep(600)"
    spec = f"Spec({code!r}, cpu_s=600, features=Features(3, {namespaces}))"
    words = [sys.executable, "-c", f"from slime_rewards.code.sandbox import *; run({spec})"]
    with subprocess.Popen(words) as runs:

        def below() -> list[str]:
            return subprocess.run(["pgrep", "-P", str(runs.pid)], capture_output=True, text=True).stdout.split()

        assert Patience(60, list).wait_for(lambda: bool(below()))
        time.sleep(1)  # it has begun by then, or is killed as it starts
        pids = below()
        runs.kill()
    assert Patience(30, list).wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT], ids=lambda each: each.name)
def test_a_program_may_end_itself(number):
    ended = run(Spec(f"import os, signal\nsignal.raise_signal({number})\nos._exit(3)", unconfined=True))
    assert ended.fault == f"it ended with {-number}"
    assert run(Spec(f"import os, signal\nsignal.raise_signal({number})\nos._exit(3)")).fault.startswith("it ended with")


def test_it_fails_closed(monkeypatch):
    """A machine without Landlock runs nothing, unless it is told to."""
    monkeypatch.setattr(sandbox, "missing", lambda: "the kernel has none")
    with pytest.raises(UnconfinedError, match="the kernel has none"):
        run(Spec("print(1)"))
    assert run(Spec("print(open('/etc/passwd').read()[:4])", unconfined=True)).output == "root\n"
