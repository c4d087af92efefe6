"""What a run survives, and what it says when it does not: kills, stops, faults, bad rewards, damaged and full disks.

    python benchmarks/chaos.py all --out benchmarks/results/chaos.md
    python benchmarks/chaos.py kills|interrupts|starts|others|returns|hangs|rewards|flips|faults|disk [--out FILE]

Real runs of the tiny model on two CPU cores, started as a user starts them. A plugin of this program writes a line at
each verb of a run's session, by which the moment is found; the engine's code is as it is. Each table is written as soon
as it is there; in FILE it takes the place of the one of that name. Seconds are upper bounds on a machine that is busy.

Needs root: every run gets a /dev/shm of its own, so that what it leaves there is seen, and `disk` mounts file systems.
"""

from __future__ import annotations

import argparse
import atexit
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import chaos_parts as parts  # noqa: E402
from chaos_engines import returns  # noqa: E402
from chaos_interrupts import interrupts  # noqa: E402
from chaos_parts import SEED, Table, folder, quoted  # noqa: E402
from chaos_run import LONG, Chaos, reference, running  # noqa: E402
from chaos_starts import starts  # noqa: E402
from machine import conditions  # noqa: E402

from slime_tools.drill.outcome import Outcome  # noqa: E402
from tests.running import end_all  # noqa: E402

# --- kill -9 of the driver

KILLS = (
    (("start", 1), ("train_sft", 1), ("checkpoint", 3), ("collect", 2), ("train_rl", 1)),
    (("train_sft", 7), ("checkpoint", 8), ("publish", 3), ("train_rl", 4), ("export", 1)),
)
"""Of two runs: in which call of which verb each process of them is killed. Every process continues the one before."""


def kills() -> Table:
    """Each kill falls anywhere within its verb, by how long that took in the run that nobody disturbs."""
    delays, seconds, rows = random.Random(SEED), reference().seconds, []
    for moments in KILLS:
        with folder() as path:
            run = Chaos(path)
            killed = [kill(run.start(), *moment, delays.uniform(0.1, 0.9) * seconds[moment[0]]) for moment in moments]
            code = run.start().finish()
            same = "yes" if code == 0 and Outcome.of(run.path) == reference().result else f"**NO** (exit {code})"
            rows += [[*row, same] for row in killed]
    return [["kill -9 in", "after", "hit", "strays", "litter", "in the end bit-equal"], *rows]


def kill(run: Chaos, verb: str, times: int, delay: float) -> list[str]:
    run.reach(verb, times)
    time.sleep(delay)
    run.process.send_signal(signal.SIGSTOP)  # `kill` looks around first, which takes longer than many a verb
    run.kill()
    hit = run.is_within(verb)
    return [f"{verb} {times}", f"{delay:.2f} s", "yes" if hit else "next", *run.ended()]


# --- kill -9 and SIGSTOP of others


@dataclass(frozen=True)
class Victim:
    """Who it is, with its role among a run's processes; `names` must stand in what is said when it is killed."""

    who: str
    role: str
    names: tuple[str, ...] = ()


SCHEDULER = Victim("SGLang's scheduler", "engine's scheduler", ("engine-0",))
SERVER = Victim("SGLang's server", "engine's server", ("engine-0",))
TRAINER = Victim("trainer", "trainer", ("trainer",))
RAYLET = Victim("raylet", "raylet", ("raylet",))
GCS = Victim("GCS", "gcs_server", ("gcs_server",))
GUARD = Victim("the reward's guard", "guard")
SCORER = Victim("the reward's scorer", "worker")

DEADLY = ((SCHEDULER, "collect"), (SERVER, "train_rl"), (TRAINER, "collect"), (RAYLET, "collect"), (GCS, "train_rl"))
HANGING = ((SCHEDULER, "collect"), (SCHEDULER, "publish"), (TRAINER, "train_rl"))
HARMLESS = ((GUARD, "collect"), (SCORER, "train_rl"))
"""A run goes on after these."""


def find(run: Chaos, victim: Victim) -> psutil.Process:
    found = run.member(victim.role)
    assert found, f"no process {victim}"
    return found


def others() -> Table:
    head = ["who, in", "the run ends after", "exit", "it says", "culprit named", "strays", "litter"]
    rows = [strike(victim, verb, signal.SIGKILL)[:-1] for victim, verb in DEADLY]
    return [head, *rows, *([*row, "-", "-"] for row in endure(signal.SIGKILL))]


def hangs() -> Table:
    head = ["who, in", "the run ends after", "exit", "it says", "culprit named", "strays", "litter", "its stack"]
    rows = [strike(victim, verb, signal.SIGSTOP) for victim, verb in HANGING]
    return [head, *rows, *([*row, "-", "-", "not needed"] for row in endure(signal.SIGSTOP))]


def strike(victim: Victim, verb: str, how: signal.Signals) -> list[str]:
    """Signal the victim in the verb, and see how the run ends."""
    with running(**LONG) as run:
        run.until(lambda: run.has_step("rl", 1))
        process = find(run, victim)
        run.reach(verb)
        process.send_signal(how)
        began = time.monotonic()
        run.remember()
        code = run.finish()
        seconds = time.monotonic() - began
        said = run.last_line()
        killed = all(name in said for name in (*victim.names, how.name))
        named = killed if how is signal.SIGKILL else f"(pid {process.pid} " in said
        ended = run.ended()
        row = [f"{victim.who}, {verb}", f"{seconds:.1f} s", str(code), quoted(said)]
        return [*row, "yes" if named else "**NO**", *ended, stack(run, process.pid)]


def stack(run: Chaos, pid: int) -> str:
    """The first lines of what the logs have of a process that was asked where it stands."""
    for log in sorted((run.path / "logs").glob("hang*")):
        if found := re.search(rf"^.*\(pid {pid} .*(\n.+)?", log.read_text(errors="replace"), re.MULTILINE):
            return quoted(found[0])
    return "**none**"


def endure(how: signal.Signals) -> Iterator[list[str]]:
    """Signal the harmless ones in turn; the run has to make three steps more each time."""
    with running(**LONG) as run:
        run.until(lambda: run.has_step("rl", 1))
        for victim, verb in HARMLESS:
            run.reach(verb)
            find(run, victim).send_signal(how)
            step, began = run.rows("rl")[-1]["step"], time.monotonic()
            run.until(lambda step=step: run.has_step("rl", step + 3))
            goes_on = (
                f"goes on, 3 steps in {time.monotonic() - began:.1f} s" if run.process.poll() is None else "**ends**"
            )
            hurt = {
                name.partition("/")[2]: value
                for row in run.rows("rl")
                if row["step"] > step
                for name, value in row.items()
                if name.startswith("reward/") and value and re.search("error|timeout", name)
            }
            yield [f"{victim.who}, {verb}", goes_on, "-", str(hurt or "nothing"), "-"]


# --- disks


def disk() -> Table:
    """A run directory on a file system of its own; to mount one takes root."""
    rows = [["full at a checkpoint, then enlarged", *full_disk(reference().result)]]
    rows += [["read-only", *read_only()], ["run directory deleted in mid-run", *deleted()]]
    return [["disk", "exit", "it says", "after"], *rows]


@contextmanager
def file_system(path: Path, size: str) -> Iterator[None]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def full_disk(expected: Any) -> list[str]:
    with folder() as path, file_system(path / "runs", "31m"):
        run = Chaos(path)
        code, said = run.start().finish(), run.last_line()
        kept = sorted(entry.name for entry in (run.path / "checkpoints").iterdir())
        subprocess.run(["mount", "-o", "remount,size=500m", path / "runs"], check=True)
        again = run.start().finish()
        same = again == 0 and Outcome.of(run.path) == expected
        return [
            str(code),
            f"`{said}`",
            f"kept {' '.join(kept)}; same command again: " + ("bit-equal" if same else "**NO**"),
        ]


def read_only() -> list[str]:
    with folder() as path, file_system(path / "runs", "31m"):
        subprocess.run(["mount", "-o", "remount,ro", path / "runs"], check=True)
        run = Chaos(path).start()
        return [str(run.finish()), quoted(run.last_line()), "-"]


def deleted() -> list[str]:
    with running() as run:
        run.until(lambda: run.has_step("rl", 1))
        shutil.rmtree(run.path)
        code = run.finish()
        left = sorted(entry.name for entry in run.path.glob("*"))
        return [str(code), quoted(run.last_line()), f"made again: {' '.join(left) or 'nothing'}"]


# --- damaged checkpoints


def flips() -> Table:
    rows = [*parts.damages(reference().run.path), again_over_a_flip()]
    return [["damage", "the one before is used", "it says"], *rows]


def again_over_a_flip() -> list[str]:
    """The whole command again over a flipped bit in the largest file."""
    with folder() as path:
        run = Chaos(path)
        shutil.copytree(reference().run.path, run.path)
        files = [file for file in parts.newest(run.path).rglob("*") if file.is_file()]
        largest = max(files, key=lambda file: file.stat().st_size)
        parts.flip(random.Random(SEED), largest)
        code = run.start().finish()
        same = code == 0 and Outcome.of(run.path) == reference().result
        said = next((line for line in run.text().splitlines() if "damaged" in line), run.last_line())
        same_text = "and bit-equal in the end" if same else f"**NO** (exit {code})"
        return [
            f"{largest.name}: a flipped bit, then the same command",
            same_text,
            quoted(said.replace(f"{path}/", "")),
        ]


TABLES: Mapping[str, Callable[[], Table]] = {
    table.__name__: table
    for table in (kills, interrupts, starts, others, returns, hangs, disk, flips, parts.faults, parts.rewards)
}


def markdown(name: str, table: Table) -> str:
    head, *rows = table
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(
        [f"## {name}", "", f"    python benchmarks/chaos.py {name}", "", f"{conditions()}.", "", *lines, ""]
    )


def put(file: Path, name: str, section: str) -> None:
    """Write a section into its place in the file, behind the others if it is none of `TABLES`, or new."""
    text = file.read_text() if file.exists() else "# Chaos: what a run survives, and what it says when it does not\n"
    head, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    kept = {part.split()[1]: part.strip() + "\n" for part in sections} | {name: section}
    file.write_text(
        "\n".join([head.strip() + "\n", *(kept[name] for name in dict.fromkeys([*TABLES, *kept]) if name in kept)])
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=[*TABLES, "all"])
    parser.add_argument("--out", type=Path, help="markdown file to put the tables into")
    options = parser.parse_args()
    atexit.register(end_all)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for name in TABLES if options.table == "all" else [options.table]:
        section = markdown(name, TABLES[name]())
        print(section, flush=True)
        if options.out:
            put(options.out, name, section)


if __name__ == "__main__":
    main()
