"""`slime trace RUN [STEP]`: a trace of a run, or of one step, for https://ui.perfetto.dev and chrome://tracing.

The file is JSON in Chrome's trace-event format, with a process for the driver, each trainer rank and each engine. Spans
that a run recorded (`observe.trace`) are drawn as they were; without them the phases of metrics.jsonl, one after the
other.
"""

from __future__ import annotations

import gzip
import json
import math
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slime import files
from slime.arguments import ArgumentParser
from slime.errors import SlimeError
from slime.observe.metrics import SAVING, Row, read_rows
from slime.observe.spans import FOLDER
from slime.printable import printable

DRIVER, STEPS = "driver", "steps"
"""The first process, and its track of whole steps."""
SECONDS = "seconds/"
WHOLE = ("step", "checkpoint")
"""What is no part of a step's time."""


class Span(NamedTuple):
    """Something that lasted. Spans of one track may overlap where they are `many`."""

    process: str
    track: str
    name: str
    begin: float  # Unix seconds
    seconds: float
    facts: Mapping[str, Any] = {}
    many: bool = False


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = "Write a trace that https://ui.perfetto.dev opens: what each process of a run did when."
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("step", nargs="?", type=int, help="one step of the newest stage (default: the whole run)")
    parser.add_argument("--output", type=Path, help="file (default: trace.json.gz in the run directory)")


def run(args: Namespace) -> None:
    """Raises SlimeError: the run has no such step, or recorded nothing."""
    rows = [row for row in read_rows(args.run / "metrics.jsonl") if f"{SECONDS}step" in row]
    if not rows:
        todo = "Name the directory of a run that has finished a step."
        raise SlimeError("there are no metrics of a step", where=str(args.run), todo=todo)
    recorded = [*_recorded(args.run / "logs" / FOLDER)]
    spans = [*_of_steps(rows), *(recorded or _of_phases(rows))]
    if args.step is not None:
        begin, end = _window(rows, args.step, args.run)
        spans = [each for each in spans if each.begin < end and each.begin + each.seconds > begin]
    name = "trace.json.gz" if args.step is None else f"trace-{args.step:06d}.json.gz"
    path = args.output or args.run / name
    if not path.parent.is_dir():
        raise SlimeError("there is no such folder", where=str(path.parent), todo="Make it, or name another --output.")
    content = json.dumps({"traceEvents": [*events(spans)], "displayTimeUnit": "ms"}).encode()
    with files.disk_errors(path):
        files.write_atomic(path, gzip.compress(content, mtime=0))
    how = "as processes recorded them" if recorded else "phases one after the other: observe.trace=true records more"
    print(printable(f"{path}  {len(spans)} spans, {how}; open it at https://ui.perfetto.dev"))


def _window(rows: Sequence[Row], step: int, folder: Path) -> tuple[float, float]:
    """Unix seconds in which a step began and ended, with the checkpoint after it."""
    stage = rows[-1]["stage"]
    steps = {row["step"]: row for row in rows if row["stage"] == stage}
    if step not in steps:
        todo = f"There are {min(steps)} to {max(steps)}."
        raise SlimeError(f"there is no step {step} of {stage}", where=str(folder), todo=todo)
    time = steps[step]["time"]
    return time - steps[step][f"{SECONDS}step"], time + steps.get(step + 1, {}).get(SAVING, 0.0)


def _of_steps(rows: Iterable[Row]) -> Iterator[Span]:
    """Whole steps, and the checkpoints between them: a row has the seconds of the one before its step."""
    end = -math.inf
    for row in rows:
        begin = row["time"] - row[f"{SECONDS}step"]
        facts = {name: value for name, value in row.items() if not name.startswith(SECONDS)}
        yield Span(DRIVER, STEPS, f"{row['stage']} {row['step']}", begin, row["time"] - begin, facts)
        if saving := row.get(SAVING):
            yield Span(DRIVER, STEPS, "checkpoint", max(end, begin - saving), min(saving, begin - end))
        end = row["time"]


def _of_phases(rows: Iterable[Row]) -> Iterator[Span]:
    """The phases of each step, in their order in metrics.jsonl: which of them alternate is not known."""
    for row in rows:
        begin = row["time"] - row[f"{SECONDS}step"]
        for name, seconds in row.items():
            if name.startswith(SECONDS) and (phase := name.removeprefix(SECONDS)) not in WHOLE and seconds > 0:
                yield Span(DRIVER, "phases", phase, begin, seconds)
                begin += seconds


def _recorded(folder: Path) -> Iterator[Span]:
    """What processes recorded. A kill may have torn a last line, which is left out."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                own = json.loads(line)
                name, begin, seconds, track = (own.pop(key) for key in ("name", "begin", "seconds", "track"))
                yield Span(track or path.stem, name if track else "main", name, begin, seconds, own, bool(track))


def events(spans: Sequence[Span]) -> Iterator[dict[str, Any]]:
    """Events of the trace-event format: times in microseconds since the first one; a complete event (`X`) a span, or
    two of an asynchronous one (`b`, `e`), which may overlap others."""
    processes = {
        name: number for number, name in enumerate(dict.fromkeys((DRIVER, *(each.process for each in spans))), 1)
    }
    tracks = {key: number for number, key in enumerate(dict.fromkeys((each.process, each.track) for each in spans), 1)}
    for name, number in processes.items():
        yield {"ph": "M", "pid": number, "tid": 0, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": number, "tid": 0, "name": "process_sort_index", "args": {"sort_index": number}}
    for (process, track), number in tracks.items():
        yield {"ph": "M", "pid": processes[process], "tid": number, "name": "thread_name", "args": {"name": track}}
    zero = min((each.begin for each in spans), default=0.0)
    for number, each in enumerate(sorted(spans, key=lambda span: (span.begin, -span.seconds))):
        begin, duration = round((each.begin - zero) * 1e6, 3), round(each.seconds * 1e6, 3)
        own: dict[str, Any] = {
            "pid": processes[each.process],
            "tid": tracks[each.process, each.track],
            "name": each.name,
        }
        own |= {"cat": each.track, "ts": begin}
        if each.many:
            yield {**own, "ph": "b", "id": number, "args": dict(each.facts)}
            yield {**own, "ph": "e", "id": number, "ts": begin + duration}
        else:
            yield {**own, "ph": "X", "dur": duration, "args": dict(each.facts)}
