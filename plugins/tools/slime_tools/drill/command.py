"""`slime drill`: a short run as it would be, the same again with processes of it killed, and what came of that.

    unhurt run -> the same with kills, each once the run is behind the one before -> table

Both run as `slime` itself, in folders of their own.
"""

from __future__ import annotations

import math
import random
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from slime.arguments import ArgumentParser
from slime.errors import SlimeError
from slime.observe.metrics import read_rows
from slime.printable import printable
from slime_tools.drill.kills import Killed, choose, during, strike, wait
from slime_tools.drill.outcome import Outcome
from slime_tools.drill.plan import KILLED, UNHURT, Kill, Plan, plan
from slime_tools.drill.processes import Traces

GONE_S = 60.0
"""In which all processes of a run that ended are gone."""
PATIENCE_S = math.inf
"""The run's own limits end it."""


@dataclass
class DrilledRun:
    """One of the two runs, going on or ended."""

    process: subprocess.Popen[bytes]
    output: Path
    path: Path
    began: float = field(default_factory=time.monotonic)

    def last_line(self) -> str:
        return (self.output.read_text(errors="replace").strip().splitlines() or [""])[-1]

    def steps(self, stage: str) -> list[float]:
        """Seconds of each step that is done."""
        file = self.path / "metrics.jsonl"
        rows = read_rows(file) if file.exists() else []
        return [row["seconds/step"] for row in rows if row["stage"] == stage and "seconds/step" in row]


@contextmanager
def started(drill: Plan, name: str) -> Iterator[DrilledRun]:
    """Ends with the block, with all that it has started."""
    drill.folder.mkdir(parents=True, exist_ok=True)
    output = drill.folder / f"{name}.txt"
    with output.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "slime", *drill.words_of(name)], stdout=out, stderr=out)
    try:
        yield DrilledRun(process, output, drill.folder / name)
    finally:
        process.terminate()
        process.wait()


@dataclass(frozen=True)
class Result:
    """Of a drill.

    Attributes:
        faults: promises that were broken.
        notes: what was left out, and what differs without a promise.
        same: whether samples, metrics and weights are those of the unhurt run, to the bit.
    """

    kills: Sequence[tuple[Kill, Killed]]
    faults: Sequence[str]
    notes: Sequence[str]
    same: bool


def drill(planned: Plan) -> Iterator[str | Result]:
    """Lines of what happens, and at last the result. Raises SlimeError: the unhurt run fails."""
    yield f"{UNHURT}: {planned.num_steps} steps, in {planned.folder / UNHURT}"
    with started(planned, UNHURT) as run:
        wait(run, lambda: False, PATIENCE_S)
        if run.process.returncode:
            what = f"the run that nobody hurts ends with exit code {run.process.returncode}: {run.last_line()}"
            raise SlimeError(what, where=str(run.output), todo="Mend it first.")
        unhurt, seconds = Outcome.of(run.path), run.steps(planned.stage)
    usual_s = statistics.median(seconds)
    yield f"{UNHURT}: done; a step took {usual_s:.1f} s"
    yield f"{KILLED}: the same, with {len(planned.kills)} kills, in {planned.folder / KILLED}"
    traces, done = Traces(), list[tuple[Kill, Killed]]()
    with started(planned, KILLED) as run:
        for kill in planned.kills:
            if (killed := _killed(run, planned, kill, usual_s, traces)) is None:
                break
            done.append((kill, killed))
            yield f"{kill.kind} (pid {killed.pid}) killed in {killed.during}: {_told(killed)}"
            if killed.code is not None:
                break
        if run.process.poll() is None:
            traces.look(psutil.Process(run.process.pid))
        wait(run, lambda: False, PATIENCE_S)
        code, last = run.process.returncode, run.last_line()
    strays, litter = traces.strays(GONE_S), traces.litter()
    apart = [] if code else [*unhurt.differences(Outcome.of(run.path))]
    faults = [f"the run ended with exit code {code}: {last}"] if code else []
    lost = [(kill.kind, each.step) for kill, each in done if not each.named and each.code != 0]
    faults += [f"no line names the {kind} killed after step {step}" for kind, step in lost]
    faults += [f"still there: {each}" for each in [*strays, *map(str, litter)]]
    notes = [f"not killed, by {kind.keys}: {name}s" for name, kind in planned.kinds.items() if not kind.budget]
    notes += [f"there was no {kill.kind} to kill after step {kill.step}" for kill in planned.kills[len(done) :]]
    if planned.same:
        faults += [f"not the same: {each}" for each in apart]
    else:
        notes += [f"not the same, which these keys do not promise: {each}" for each in apart]
    yield Result(done, faults, notes, same=not (code or apart))


def _killed(run: DrilledRun, planned: Plan, kill: Kill, usual_s: float, traces: Traces) -> Killed | None:
    """None: the run has ended, or there is no such process on this host."""
    kind = planned.kinds[kill.kind]
    if not wait(run, lambda: len(run.steps(planned.stage)) >= kill.step, PATIENCE_S):
        return None
    time.sleep(kill.share * usual_s)
    wait(run, lambda: not kind.not_in or kind.not_in not in during(run), PATIENCE_S)
    found = choose(run, kind.roles, random.Random(kill.share))
    if found is None or run.process.poll() is not None:
        return None
    traces.look(psutil.Process(run.process.pid))
    return strike(run, *found, usual_s, PATIENCE_S)


def _told(killed: Killed) -> str:
    if killed.code is None:
        return f"the run went on, {killed.seconds:.0f} s later"
    return "the run ended" if killed.code else "the run was done before it needed it again"


def table(planned: Plan, result: Result) -> Iterator[str]:
    """The result for people, line by line."""
    yield f"{'killed':<28}{'in':<18}{'seconds lost':>13}  named by the run"
    for _, killed in result.kills:
        lost = f"{killed.seconds:.1f}" if killed.code is None else "ended" if killed.code else "done"
        name, where = f"{killed.role} {killed.pid}", f"{planned.stage} {killed.step + 1} {killed.during.split()[-1]}"
        yield f"{name:<28}{where:<18}{lost:>13}  {killed.named or '-'}"
    yield ""
    yield from result.notes
    if result.same:
        yield "samples, metrics and weights: the same to the bit as of the run that was not hurt"
    yield from (f"broken: {fault}" for fault in result.faults)
    if not result.faults:
        yield "every promise is kept"


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = """\
Kills processes of a short run on purpose, of each kind that its keys say to survive, and compares it with one that
nobody hurts. The exit code is 1 if a promise was broken."""
    parser.add_keys()
    parser.add_argument("--kills", type=int, default=3, metavar="N", help="how many (default: 3)")
    parser.add_argument("--steps", type=int, metavar="N", help="of each run (default: three for each kill, and one)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the moments (default: 0)")


def run(args: Namespace) -> int:
    """Raises SlimeError: the config is wrong, or its run fails unhurt."""
    planned = plan(args.keys, args.kills, args.steps, args.seed)
    for told in drill(planned):
        if isinstance(told, str):
            print(printable(told), flush=True)
    assert isinstance(told, Result)
    print(printable("\n".join(["", *table(planned, told)]).rstrip()))
    return int(bool(told.faults))
