"""Random kills: any process of a run, at any instant, with every feature: a table of `chaos.py`.

    python benchmarks/chaos_random.py kills.jsonl --chains 0:50        # in parts; then `--table` shows all of them
    python benchmarks/chaos_random.py kills.jsonl --table

A chain is one run in a folder of its own, of which process after process is killed. Where the run ends, the same
command is started again, at last until it is done; it must have learnt what a run learns that nobody disturbs. The
dice of a chain have its number as their seed: which feature, which processes, when.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import socket
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from chaos import put
from chaos_interrupts import Command
from chaos_kinds import RUNS, make
from chaos_parts import folder
from chaos_random_table import VARIES, section

from slime.config.schema import Device
from slime.errors import SlimeError
from slime.net import LOOPBACK
from slime.observe.metrics import read_rows
from slime_sglang.engine.driver.kv_transfer import require_mooncake
from slime_tools.drill.kills import Killed, choose, position, strike, wait
from slime_tools.drill.outcome import Outcome
from slime_tools.drill.processes import DRIVER, ROLES, role_of
from tests.namespaces import Hosts, several_hosts


def has_mooncake() -> bool:
    with suppress(SlimeError):
        require_mooncake(Device.cpu)
        return True
    return False


AT_ONCE = 2
NUM_CHAINS, KILLS = 40, 5
"""Chains of `KINDS` in turn, with the numbers below; those above are of `LATER`."""
AT_START = 0.3
"""Share of kills of a run that has just been started, or started again, that fall into its start."""
START_S = 15.0
ENDS_S = 400.0
LASTING: Mapping[str, Any] = {
    "sft.num_steps": 4,
    "run.num_steps": 24,
    "eval.interval": 8,
    "train.checkpoint.interval": 4,
    "rollout.restarts": 50,
    "train.restarts": 50,
    "cluster.hang_timeout_s": 300,
}
"""Long enough for five kills; budgets that none of them spends."""
HOSTS: Mapping[str, Any] = {
    "cluster.num_nodes": 2,
    "cluster.num_trainers": 2,
    "cluster.hostfile": "hosts",
    "cluster.spares": 1,
    "cluster.socket_interface": "eth0",
    "rollout.engines.default.devices": 2,
}
SPARE = "spare host"
PAIRS = "prefill and decode"
TAKE_OVER = "take-over"
FAVOURED = {"copies in memory": "trainer", TAKE_OVER: DRIVER}
"""Kinds of run that are about the death of one role, which half of their kills are of."""
LATER = [*FAVOURED]
KINDS = [kind for kind in (*RUNS, SPARE) if kind not in LATER and (kind != PAIRS or has_mooncake())]
"""Without libibverbs there are no pairs of engines."""
TAKES_OVER = "taking over "
"""Words of a driver that found what another one has left."""
VICTIMS = [DRIVER, *dict.fromkeys(ROLES.values()), "worker"]
HOST = "a host"
_MAKING, _WRITING = threading.Lock(), threading.Lock()


class Hurt(Command):
    """A command that lasts, in a folder of its own; on several hosts where its kind is so."""

    def __init__(self, kind: str, place: Path, made: Path, silent: str, hosts: Hosts | None) -> None:
        own = RUNS.get(kind, {})
        kept = [key for key in ("sft.num_steps", "eval.interval") if key in own]
        more = {key: value for key, value in LASTING.items() if key not in kept} | (HOSTS if hosts else {})
        super().__init__("laptop" if hosts else kind, place, made, silent, more)
        self.path, self.hosts = place / "runs/it", hosts
        if hosts:
            (place / "hosts").write_text("\n".join(hosts.addresses))
            self.through = [*hosts.through]
            self.environment |= {"PATH": f"{hosts.path}:{os.environ['PATH']}"}

    def members(self) -> set[psutil.Process]:
        """Also those of its other hosts that are no longer this run's children."""
        there = (
            set[psutil.Process]().union(*(host.running for host in self.hosts.others.values())) if self.hosts else set()
        )
        return super().members() | there

    def below(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return list(psutil.Process(self.process.pid).children())
        return []

    def end(self) -> None:
        """At once, with all that it has started."""
        for process in [*self.members()]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


@contextmanager
def ready(kind: str, made: Path, silent: str) -> Iterator[Hurt]:
    with ExitStack() as stack:
        place = stack.enter_context(folder())
        hosts = stack.enter_context(several_hosts(place, 3)) if kind == SPARE else None
        run = Hurt(kind, place, made, silent, hosts)
        try:
            yield run
        finally:
            if hasattr(run, "process"):
                run.end()


_KNOWN: dict[str, tuple[Outcome, float]] = {}


def undisturbed(kind: str, made: Path, silent: str) -> tuple[Outcome, float]:
    """What a run of the kind ends with, and seconds of its steps."""
    with _MAKING:
        if kind not in _KNOWN:
            with ready(kind, made, silent) as run:
                run.start()
                wait(run, lambda: False, ENDS_S)
                assert run.process.returncode == 0, run.text()
                steps = [row["seconds/step"] for row in read_rows(run.path / "metrics.jsonl") if "seconds/step" in row]
                _KNOWN[kind] = Outcome.of(run.path), statistics.median(steps)
        return _KNOWN[kind]


def kind_of(number: int) -> str:
    kinds = KINDS if number < NUM_CHAINS else LATER
    return kinds[number % len(kinds)]


def chain(number: int, made: Path, silent: str) -> list[dict[str, Any]]:
    """The kills of one chain, as rows."""
    dice, kind = random.Random(f"kills {number}"), kind_of(number)
    known, usual_s = undisturbed(kind, made, silent)
    rows: list[dict[str, Any]] = []
    with ready(kind, made, silent) as run:
        run.start()
        stayed: dict[str, Any] | None = None
        try:
            for _ in range(KILLS):
                killed = one(run, dice, usual_s)
                if stayed:
                    stayed["taken over"] = TAKES_OVER in run.text()
                stayed = None
                if killed is None:
                    break
                rows.append({"chain": number, "feature": kind, **asdict(killed)})
                if not killed.named:
                    rows[-1]["output"] = run.text()[-1500:]
                if killed.code is not None:
                    stays = kind == TAKE_OVER and killed.role == DRIVER
                    rows[-1] |= {} if stays else left(run)
                    if killed.code == 0:
                        break
                    back(run)
                    run.start()
                    stayed = rows[-1] if stays else None
            wait(run, lambda: False, ENDS_S)
            if stayed:
                stayed["taken over"] = TAKES_OVER in run.text()
            if run.process.returncode:
                raise TimeoutError(f"exit code {run.process.returncode}: {run.text().splitlines()[-1]}")
            apart = [] if kind in VARIES else [*known.differences(Outcome.of(run.path))]
            complete = Outcome.of(run.path).metrics.keys() >= known.metrics.keys()
            end = {**left(run), "same": not apart and complete, "apart": apart[:4]}
        except TimeoutError as problem:
            end = {"same": False, "apart": [str(problem)], "output": run.text()[-4000:]}
        return [{**row, "end": end} for row in rows] or [{"chain": number, "feature": kind, "role": "", "end": end}]


def one(run: Hurt, dice: random.Random, usual_s: float) -> Killed | None:
    """Wait for a moment, and kill something; None if the run ended before."""
    if "ready: " not in run.text() and dice.random() < AT_START:
        wait(
            run, lambda: bool(run.below() or TAKES_OVER in run.text())
        )  # before that there is nobody who could tell of its end
        time.sleep(dice.uniform(0, START_S))
    else:
        goal = (position(run)[0], position(run)[1] + dice.randint(1, 4))
        if not wait(run, lambda: position(run) >= max(goal, (1, 1))):
            return None
        time.sleep(dice.uniform(0, 2 * usual_s))
    if run.hosts and dice.random() < 0.4 and len(run.hosts.others) > 1:
        address = run.hosts.addresses[1]
        if run.hosts.others[address].running:
            return lose(run, address, usual_s)
    roles = [FAVOURED[run.kind]] if run.kind in FAVOURED and dice.random() < 0.5 else VICTIMS
    found = (choose_left if run.kind == TAKE_OVER else choose)(run, roles, dice)
    return strike(run, *found, usual_s) if found else None


def choose_left(run: Hurt, roles: Sequence[str], dice: random.Random) -> tuple[str, psutil.Process] | None:
    """As `choose`, also of what a driver before has started."""
    found: dict[str, list[psutil.Process]] = {}
    for process in sorted(run.members(), key=lambda process: process.pid):
        with suppress(psutil.NoSuchProcess):
            role = DRIVER if process.pid == run.process.pid else role_of(process)
            if role and role in roles:
                found.setdefault(role, []).append(process)
    if not found:
        return None
    role = dice.choice(sorted(found))
    return role, dice.choice(found[role])


def lose(run: Hurt, address: str, usual_s: float) -> Killed:
    """A whole host, with all that runs on it."""
    assert run.hosts
    return strike(run, HOST, run.hosts.others.pop(address).first, usual_s)


def back(run: Hurt) -> None:
    """Every host is there again."""
    for address in run.hosts.addresses[1:] if run.hosts else ():
        if address not in run.hosts.others:
            run.hosts.bring_up(address)


def left(run: Hurt) -> dict[str, list[str]]:
    """What a run that has ended leaves behind; it is removed."""
    strays = [*run.strays()]
    told = [" ".join(stray.cmdline())[:80] for stray in strays if stray.is_running()]
    for stray in strays:
        with suppress(psutil.NoSuchProcess):
            stray.kill()
    litter = run.litter()
    for path in litter:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return {"strays": told, "litter": [path.name for path in litter]}


def anything(chains: Sequence[int], file: Path, at_once: int) -> None:
    """Write the rows of all kills as they come."""
    with folder() as made, socket.create_server((LOOPBACK, 0)) as silent, ThreadPoolExecutor(at_once) as pool:
        make(made)
        url = f"http://{LOOPBACK}:{silent.getsockname()[1]}"
        list(pool.map(lambda number: write(chain_of(number, made, url), file), chains))


def chain_of(number: int, made: Path, url: str) -> list[dict[str, Any]]:
    try:
        return chain(number, made, url)
    except (AssertionError, OSError, TimeoutError, psutil.Error, SlimeError) as problem:
        said = f"{type(problem).__name__}: {problem}"[-3000:]
        return [
            {
                "chain": number,
                "feature": kind_of(number),
                "role": "",
                "end": {"same": False, "apart": [said]},
            }
        ]


def write(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    with _WRITING, file.open("a") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)


def numbers(text: str) -> Sequence[int]:
    given = [*map(int, text.replace(":", ",").split(","))]
    return range(*given) if ":" in text else given


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="file of the kills, a JSON object a line")
    parser.add_argument("--chains", default=f"0:{NUM_CHAINS}", help="numbers: 7,9 or first:behind the last")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="chains beside each other")
    parser.add_argument("--table", action="store_true", help="show what is there")
    parser.add_argument("--out", type=Path, help="markdown file to put the tables into")
    options = parser.parse_args()
    if not options.table:
        anything(numbers(options.chains), options.rows, options.at_once)
    found = section([json.loads(line) for line in options.rows.read_text().splitlines()])
    print(found)
    if options.out:
        put(options.out, "random", found)


if __name__ == "__main__":
    main()
