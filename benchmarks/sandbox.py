"""What is tried against the sandbox of programs that a model wrote, and what came of it: a table.

    python benchmarks/sandbox.py

Each try is made as this user and, where root starts this, as another one, in three settings of the kernel's features.
Its control is the same try outside of the sandbox. Exits with 1 where one did not hold. Linux on x86-64.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from sandbox_tries import CALLS, ENDED, NO_CONTROL, TAKES, WRONG  # noqa: E402

from plugins.rewards.tests.code import escapes  # noqa: E402
from slime.types import Prompt, Sample, VerdictKind  # noqa: E402
from slime_rewards.code import sandbox  # noqa: E402
from slime_rewards.code.reward import CodeReward  # noqa: E402
from slime_rewards.code.sandbox import Features, NotRunError, Spec, run  # noqa: E402

SETTINGS = {"all": (6, True), "no namespaces": (6, False), "no namespaces, Landlock 3": (3, False)}
REFUSED = (1, 38)  # EPERM, ENOSYS
LIMITS = {"cpu_s": 1, "memory_mb": 256, "most_s": 8.0}
GROWS = 300 * 2**20
"""Bytes that a program takes outside which is to be stopped at 256 MiB."""
MAKE_CALLS = """
import ctypes, json, os
libc, P = ctypes.CDLL(None, use_errno=True), {pid}
def argument(given, B):
    given = eval(given, {{"P": P, "B": B, "os": os}}) if isinstance(given, str) else given
    return ctypes.c_long(given) if isinstance(given, int) else given
found = {{}}
for name, [number, *given] in {calls!r}.items():
    B = ctypes.create_string_buffer(4096)
    result = libc.syscall(ctypes.c_long(number), *(argument(each, B) for each in given))
    found[name] = [result, ctypes.get_errno() if result < 0 else 0]
print(json.dumps(found))
"""
Outcome = tuple[str, str, bool]
"""Kind, name, and whether a try held; of a control: whether it worked."""


def inside(**fewer: Any) -> Iterator[Outcome]:
    """All tries, with the features that are in force."""
    calls, programs = {name: call for kind in CALLS.values() for name, call in kind.items()}, escapes.ESCAPES
    kinds = {name: kind for kind, named in CALLS.items() for name in named}
    with escapes.victim() as (codes, harm), subprocess.Popen(["sleep", "600"]) as process:
        made = json.loads(run(Spec(MAKE_CALLS.format(pid=process.pid, calls=calls), **fewer)).output)
        yield from ((kinds[name], name, tuple(made[name])[1] in REFUSED) for name in calls)
        said = json.loads(run(Spec(escapes.TRY_ALL.format(codes=codes), **fewer)).output)
        yield from (("by Python", name, said[name].startswith("refused")) for name in programs)
        yield "by Python", "harm to the victims", harm() == [] and process.poll() is None
        process.kill()
    for name, code in ENDED.items():
        yield "processes", name, run(Spec(code, **fewer)).fault == "it ended with -31"
    takes = [(kind, name, code) for kind, named in TAKES.items() for name, code in named.items()]
    with ThreadPoolExecutor(2) as pool:
        ends = pool.map(lambda take: ends_by_limit(take[2], **fewer), takes)
        yield from ((kind, name, ended) for (kind, name, _), ended in zip(takes, ends, strict=True))
        verdicts = pool.map(verdict, WRONG.values())
        for name, (value, kind) in zip(WRONG, verdicts, strict=True):
            yield "verdicts", name, kind is VerdictKind.VALUE and value == 0
    left = subprocess.run(["pgrep", "-f", sandbox.confine.__file__, "-P", str(os.getpid())], capture_output=True)
    yield "processes", "what is left of all", not left.stdout.strip()


def ends_by_limit(code: str, **fewer: Any) -> bool:
    try:
        return bool(run(Spec(code, **LIMITS, **fewer)).fault)
    except NotRunError:  # it was ended, on a machine too busy to say whose fault that was
        return True


def verdict(code: str) -> tuple[float | None, VerdictKind]:
    label = {"function": "add", "inputs": [[3, 4]], "outputs": [7]}
    answer = Sample(Prompt("0/0", (), (), label), 0, response=f"```python\n{code}\n```")
    for _ in range(3):
        found = CodeReward(cpu_s=1, memory_mb=256).score(answer)
        if "too busy" not in found.reason:
            break
    return found.value, found.kind


def outside() -> Iterator[Outcome]:
    """The controls: each try without the sandbox. What cannot be tried so is left out."""
    kinds = {name: kind for kind, named in CALLS.items() for name in named}
    calls = {name: call for kind in CALLS.values() for name, call in kind.items() if name not in NO_CONTROL}
    with subprocess.Popen(["sleep", "600"]) as process:
        ended = run(Spec(MAKE_CALLS.format(pid=process.pid, calls=calls), unconfined=True))
        process.kill()
    made = json.loads(ended.output)
    yield from ((kinds[name], name, made[name][1] not in REFUSED) for name in calls)
    for name in escapes.ESCAPES.keys() - escapes.NO_CONTROL.keys():
        with escapes.victim() as (codes, _):
            done = run(Spec(f"{codes[name]}\nprint('done')", unconfined=True))
            yield "by Python", name, done.output == "done\n"
    yield from (("processes", name, not run(Spec(code, unconfined=True)).fault) for name, code in ENDED.items())
    for name, code in TAKES["time"].items():
        yield "time", name, goes_on(code)
    for name, code in TAKES["memory"].items():
        yield "memory", name, grows(code)
    yield "verdicts", "a right program", verdict("def add(a, b): return a + b") == (1.0, VerdictKind.VALUE)


def goes_on(code: str) -> bool:
    """Whether it is still there after a second that it could have run."""
    ended = subprocess.run(["timeout", "-s", "KILL", "3", sys.executable, "-c", code], capture_output=True)
    return ended.returncode in (137, -9)


def grows(code: str) -> bool:
    """Whether a program takes, or writes, more than it may inside."""

    def bounded() -> None:
        for limit, most in ((resource.RLIMIT_AS, 2**31), (resource.RLIMIT_CPU, 10), (resource.RLIMIT_FSIZE, 2**29)):
            resource.setrlimit(limit, (most, most))

    with tempfile.TemporaryFile() as output:
        words = [sys.executable, "-c", code]
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.DEVNULL, preexec_fn=bounded)
        used = os.wait4(process.pid, 0)[2]
        return used.ru_maxrss * 1024 > GROWS or os.fstat(output.fileno()).st_size > 2**20


def one_user() -> dict[str, Any]:
    """All outcomes as the user of this process."""
    with_all = sandbox.features()
    found: dict[str, Any] = {"controls": [*outside()]}
    for name, (landlock, namespaces) in SETTINGS.items():
        used = Features(min(with_all.landlock, landlock), with_all.namespaces and namespaces)
        sandbox.features = lambda used=used: used  # what the reward has, too
        found[name] = {"features": used, "tries": [*inside()]}
    return found


def told(user: str, found: Mapping[str, Any]) -> Iterator[str]:
    worked = Counter(kind for kind, _, works in found["controls"] if works)
    for name in SETTINGS:
        features, tries = Features(*found[name]["features"]), found[name]["tries"]
        by_kind: dict[str, list[bool]] = defaultdict(list)
        for kind, _, held in tries:
            by_kind[kind].append(held)
        for kind, held in by_kind.items():
            row = (user, name, f"{features.landlock}, {'yes' if features.namespaces else 'no'}", kind)
            yield "| " + " | ".join([*row, str(len(held)), str(sum(held)), str(worked[kind])]) + " |"


def faults(user: str, found: Mapping[str, Any]) -> Iterator[str]:
    for name in SETTINGS:
        yield from (
            f"DID NOT HOLD: {user}, {name}: {kind}: {what}" for kind, what, held in found[name]["tries"] if not held
        )


def main() -> int:
    """Print the table."""
    if sys.argv[1:] == ["--one-user"]:
        print(json.dumps(one_user()))
        return 0
    users: dict[str, Callable[[Path], list[str]]] = {"this user": lambda _: []}
    if os.geteuid() == 0:
        users = {"root": lambda _: [], "another user": escapes.as_nobody}
    rows, wrong, total = [], [], Counter[str]()
    for user, prefix in users.items():
        with tempfile.TemporaryDirectory() as place:
            words = [*prefix(Path(place)), sys.executable, __file__, "--one-user"]
            done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            sys.exit(f"{user}: {done.stderr}")
        found = json.loads(done.stdout)
        rows += told(user, found)
        wrong += faults(user, found)
        total["tries"] += sum(len(found[name]["tries"]) for name in SETTINGS)
        total["different"] = len(found["all"]["tries"])
        total["controls"] += sum(works for _, _, works in found["controls"])
        total["no effect outside"] += sum(not works for _, _, works in found["controls"])
    print(f"Linux {platform.release().split('-')[0]}, {platform.machine()}, Python {platform.python_version()}\n")
    print("| user | setting | Landlock, namespaces | kind | tries | held | controls that worked |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(rows))
    print(f"\n{total['different']} different tries, {total['tries']} in all; {len(wrong)} did not hold.")
    print(f"Controls: {total['controls']} worked, {total['no effect outside']} were refused outside, too.")
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
