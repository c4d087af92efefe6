"""What right programs do: it works in the sandbox as it does outside."""

from __future__ import annotations

import pytest

from slime_rewards.code import sandbox
from slime_rewards.code.sandbox import Spec, run

pytestmark = pytest.mark.skipif(bool(sandbox.missing()), reason=f"this machine has no sandbox: {sandbox.missing()}")


def test_what_a_program_needs_works():
    code = "import numpy, asyncio, decimal\nasyncio.run(asyncio.sleep(0))\nprint(numpy.eye(int(input())).sum())"
    assert run(Spec(code), "3\n") == ("3.0\n", "", False)


USUAL = """
import asyncio, bisect, collections, concurrent.futures, ctypes, datetime, decimal, fractions, functools, heapq, io
import itertools, json, math, mmap, multiprocessing, os, pickle, queue, random, re, resource, secrets, select, selectors
import signal, socket, sqlite3, string, sys, threading, time, uuid, zoneinfo
import numpy, sympy
said = []
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    said.append(sum(pool.map(abs, range(-9, 9))))
async def both():
    return await asyncio.gather(asyncio.sleep(0.01, 1), asyncio.to_thread(abs, -2))
said.append(asyncio.run(both()))
threading.stack_size(1 << 26)
sys.setrecursionlimit(1 << 20)
def deep(n):
    return n and 1 + deep(n - 1)
deeper = threading.Thread(target=lambda: said.append(deep(50_000)))
deeper.start(); deeper.join()
signal.signal(signal.SIGALRM, lambda *_: said.append("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.01)
time.sleep(0.05)
signal.raise_signal(signal.SIGALRM)
os.kill(os.getpid(), signal.SIGALRM)
try:
    resource.setrlimit(resource.RLIMIT_STACK, (resource.getrlimit(resource.RLIMIT_STACK)[1],) * 2)
except ValueError:
    pass
store = sqlite3.connect(":memory:")
store.execute("create table t(a)")
store.executemany("insert into t values(?)", [(1,), (2,)])
said.append(store.execute("select sum(a) from t").fetchone()[0])
said.append(round(float(numpy.linalg.inv(numpy.eye(200) * 2).sum())))
said.append(str(sympy.factor(sympy.Symbol("x") ** 2 - 1)))
left, right = socket.socketpair()
left.sendall(b"over"); said.append(right.recv(9))
poll = selectors.DefaultSelector(); poll.register(right, selectors.EVENT_READ); poll.select(0)
mmap.mmap(-1, 4096)[0:1] = b"x"
said.append(zoneinfo.ZoneInfo("Europe/Berlin").utcoffset(datetime.datetime(2024, 7, 1)).seconds)
random.SystemRandom().random(); secrets.token_hex(); uuid.uuid4(); os.cpu_count(); os.getcwd()
said.append(ctypes.CDLL(None).abs(-3))
with open(os.devnull, "w") as nowhere:
    print("lost", file=nowhere)
class Own:
    pass
said.append(type(pickle.loads(pickle.dumps(Own()))) is Own)
said += [sys.stdin.readline(), os.read(0, 0), open(0).read()]
print(said)
exit()
"""


def test_many_threads_are_no_large_memory():
    barrier = "import threading\nall_of_them = threading.Barrier(17)\n"
    starts = "for _ in range(16): threading.Thread(target=all_of_them.wait).start()\nprint(all_of_them.wait() >= 0)"
    assert run(Spec(barrier + starts)) == ("True\n", "", False)


def test_what_usual_programs_do_works():
    pytest.importorskip("sympy")
    given = "first\nlast\n"
    ended = run(Spec(USUAL, memory_mb=2048, cpu_s=30), given)
    assert ended == run(Spec(USUAL, memory_mb=2048, cpu_s=30, unconfined=True), given)
    assert ended.fault == ""
    assert "'alarm', 'alarm', 'alarm', 3, 100, '(x - 1)*(x + 1)', b'over', 7200, 3, True" in ended.output


def test_annotations_are_what_they_are_in_python():
    """Not texts, as they would be if the program were compiled as its sandbox is."""
    code = "def f(a: int): pass\nprint(f.__annotations__)"
    assert run(Spec(code)).output == "{'a': <class 'int'>}\n"
    called = run(Spec("def f(a: int): pass\ndef g(): return str(f.__annotations__)", "g()", names=("g",)))
    assert called.output == repr("{'a': <class 'int'>}")
