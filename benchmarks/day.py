"""A day of a run by a clock that is not waited for: 20,000 steps of the tiniest model, and what grows meanwhile.

    python benchmarks/day.py run --folder FOLDER --samples day.csv
    python benchmarks/day.py follow RUN_DIRECTORY PID --samples day.csv      # a run that is there already
    python benchmarks/day.py table day.csv --out benchmarks/results/day.md

A real run on two CPU cores. Every 20 s a row is written: of each process of the run its resident memory, descriptors,
threads and seconds of the processor; the run's directory, its files in temporary folders and in shared memory; and how
long its live page takes to open. The table has the slope of each over the second half of the steps.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy
import psutil
from machine import conditions

from slime_tools.drill.processes import role_of

EVERY_S = 20.0
NUM_BLOCKS = 16
"""Samples follow one another closely and are not independent: means of that many stretches of steps nearly are."""
STUDENT = 2.14
"""The 97.5 % quantile of Student's t with `NUM_BLOCKS - 2` degrees of freedom (tables of the distribution)."""
WORDS = [
    *("+model=glm4-tiny", "+cluster=local", "model.num_layers=1", "run.name=day", "run.num_steps=20000"),
    *("rollout.prompts_per_step=2", "rollout.samples_per_prompt=4", "rollout.sampling.max_response_tokens=6"),
    *("sft.num_steps=20", "sft.lr_warmup_steps=1", "eval.interval=500", "eval.limit=16", "reward.path=reward.py:score"),
    *("observe.zero_variance_steps=0", "observe.samples_mb=20", "observe.replay_mb=10", "observe.prometheus=0"),
    "train.checkpoint.interval=100",
]
REWARD = '''import zlib


def score(sample):
    """A value that differs from response to response, so that every step has a gradient."""
    return zlib.crc32(sample.response.encode()) % 97 / 97
'''
UNITS = {"rss": "MB", "fds": "descriptors", "threads": "threads", "cpu": "ms of the processor a step"}


class Page:
    """`slime watch` of the run, and what a browser asks it for as the page opens and a second later."""

    def __init__(self, run: Path) -> None:
        command = [sys.executable, "-m", "slime", "watch", str(run)]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._server.stdout
        _, address, _ = (self._server.stdout.readline() for _ in range(3))
        self._url, self._key = address.split()[-1].split("#")
        self.process = psutil.Process(self._server.pid)

    def opens(self) -> float:
        """Seconds that the server takes to answer a page that has nothing yet."""
        began = time.monotonic()
        for path in ("", f"data?have={quote('{}')}"):
            asked = urllib.request.Request(self._url + path, headers={"Authorization": f"Bearer {self._key}"})
            with urllib.request.urlopen(asked, timeout=600) as answer:
                answer.read()
        return time.monotonic() - began

    def end(self) -> None:
        self._server.terminate()
        self._server.wait()


def anonymous(process: psutil.Process) -> float:
    """Megabytes of memory that is no file's: pages of programs and libraries come and go with what others need."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024 / 1e6


def last_row(metrics: Path) -> dict[str, Any]:
    with metrics.open("rb") as file:
        file.seek(max(0, metrics.stat().st_size - 65536))
        lines = file.read().splitlines()
    return dict(json.loads(lines[-1])) if lines else {}


def size_of(folders: Sequence[Path]) -> tuple[float, int]:
    """Megabytes on disk, and files."""
    blocks = num_files = 0
    for top in folders:
        for folder, _, names in os.walk(top):
            for name in names:
                with suppress(FileNotFoundError):
                    blocks += os.lstat(os.path.join(folder, name)).st_blocks
                    num_files += 1
    return blocks * 512 / 1e6, num_files


def sample(run: Path, driver: psutil.Process, page: Page) -> dict[str, float]:
    row: Counter[str] = Counter()
    family = [driver, *driver.children(recursive=True)]
    scratch, shared = set[str](), dict[str, float]()
    for process in [*family, page.process]:
        with suppress(psutil.NoSuchProcess, FileNotFoundError, IndexError):
            name = {driver: "driver", page.process: "slime watch"}.get(process) or role_of(process) or "others"
            times = process.cpu_times()
            row[f"{name}/rss"] += anonymous(process)
            row[f"{name}/fds"] += process.num_fds()
            row[f"{name}/threads"] += process.num_threads()
            row[f"{name}/cpu"] += 1000 * (times.user + times.system)
            scratch |= {at for at in [process.environ().get("SLIME_ENGINE_SCRATCH")] if at}
            scratch |= {
                word.split("=")[1].split("/session_")[0]
                for word in process.cmdline()
                if "_dir=" in word and "/session_" in word
            }
            for entry in process.memory_maps(grouped=False):
                if entry.path.startswith("/dev/shm/"):
                    shared[entry.path] = max(shared.get(entry.path, 0), entry.rss / 1e6)
    row["processes"] = len(family)
    row["run directory/MB"], row["run directory/files"] = size_of([run])
    row["metrics.jsonl/MB"] = (run / "metrics.jsonl").stat().st_size / 1e6
    row["temporary folders/MB"], row["temporary folders/files"] = size_of([*map(Path, sorted(scratch))])
    row["shared memory/MB"], row["shared memory/files"] = sum(shared.values()), len(shared)
    before = sum(page.process.cpu_times()[:2])
    row["page opens/s"] = page.opens()
    row["page opens/s of the processor"] = sum(page.process.cpu_times()[:2]) - before
    last = last_row(run / "metrics.jsonl")
    return {"time": time.time(), "step": last["step"] if last["stage"] == "rl" else 0, **row}


def follow(run: Path, driver: psutil.Process, file: Path) -> None:
    """Write a row every `EVERY_S` seconds until the driver ends."""
    page, names = Page(run), list[str]()
    try:
        with file.open("w", newline="") as out:
            while driver.is_running() and driver.status() != psutil.STATUS_ZOMBIE:
                with suppress(psutil.NoSuchProcess):
                    row = sample(run, driver, page)
                    if not names and row["step"]:
                        names = list(row)
                        csv.writer(out).writerow(names)
                    if names:
                        csv.writer(out).writerow(
                            [f"{row.get(name, 0):.6g}" if name != "time" else f"{row[name]:.2f}" for name in names]
                        )
                        out.flush()
                time.sleep(EVERY_S)
    finally:
        page.end()


def read(file: Path) -> dict[str, numpy.ndarray[Any, Any]]:
    """The columns, with what a step took, by the clock and by the processor, between one sample and the next. Without
    the last sample, which may be of the run's end: that reads all metrics."""
    with file.open() as text:
        rows = list(csv.DictReader(text))[:-1]
    columns = {name: numpy.array([float(row[name]) for row in rows]) for name in rows[0]}
    moved = numpy.flatnonzero(numpy.diff(columns["step"]) > 0)
    steps = numpy.diff(columns["step"])[moved]
    found = {name: values[moved + 1] for name, values in columns.items()}
    for name in [*columns]:
        if name == "time" or name.endswith("/cpu"):
            per = numpy.diff(columns[name])[moved] / steps
            found[name if name != "time" else "seconds a step"] = per
    del found["time"]
    return found


def slope(steps: Any, values: Any) -> tuple[float, float]:
    """Of the second half of the steps, by least squares of the means of blocks: a thousand steps' growth, and its
    standard error."""
    half = steps >= steps[-1] / 2
    if half.sum() < NUM_BLOCKS:
        sys.exit(f"day: {half.sum()} samples of the second half, which takes {NUM_BLOCKS}: let it run longer")
    blocks = zip(numpy.array_split(steps[half], NUM_BLOCKS), numpy.array_split(values[half], NUM_BLOCKS), strict=True)
    x, y = numpy.array([[part.mean() for part in block] for block in blocks]).T
    x = (x - x.mean()) / 1000
    grows = (x @ y) / (x @ x)
    rest = y - y.mean() - grows * x
    return float(grows), float(numpy.sqrt((rest @ rest) / (NUM_BLOCKS - 2) / (x @ x)))


def rows(columns: Mapping[str, Any]) -> Iterator[list[str]]:
    """Of all that changes in the second half; what does not stands in the last row."""
    steps, same = columns["step"], list[str]()
    first, half = steps >= steps[-1] / 20, steps >= steps[-1] / 2
    for name, values in columns.items():
        who, _, what = name.rpartition("/")
        told = f"{who}, {UNITS.get(what, what)}" if who else what
        if name == "step" or values[half].min() == values[half].max():
            same += [f"{told} {values[-1]:.4g}"] if name != "step" else []
            continue
        grows, error = slope(steps, values)
        verdict = "flat" if abs(grows) <= STUDENT * error else f"**{'grows' if grows > 0 else 'shrinks'}**"
        yield [told, *(f"{value:.4g}" for value in (values[first][0], values[-1], grows, error)), verdict]
    yield [f"always the same in the second half: {'; '.join(same)}", *("-",) * 4, "flat"]


def table(file: Path) -> str:
    columns = read(file)
    steps = columns["step"]
    head = ["what", "after a twentieth", "at the end", "slope per 1,000 steps", "its standard error", ""]
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows(columns))]
    return f"{int(steps[-1]):,} steps, {len(steps)} samples.\n\n" + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    runs, follows, tables = (verbs.add_parser(verb) for verb in ("run", "follow", "table"))
    runs.add_argument("--folder", type=Path, required=True, help="where it is started")
    follows.add_argument("directory", type=Path)
    follows.add_argument("pid", type=int, help="of the driver")
    for verb in (runs, follows):
        verb.add_argument("--samples", type=Path, required=True, help="the file of the rows")
    tables.add_argument("samples", type=Path)
    tables.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.verb == "table":
        text = f"# A day of a run\n\n    python benchmarks/day.py\n\n{conditions()}. {table(options.samples)}"
        print(text)
        if options.out:
            options.out.write_text(text)
    elif options.verb == "follow":
        follow(options.directory, psutil.Process(options.pid), options.samples)
    else:
        options.folder.mkdir(parents=True, exist_ok=True)
        (options.folder / "reward.py").write_text(REWARD)
        with subprocess.Popen([sys.executable, "-m", "slime", *WORDS], cwd=options.folder) as process:
            directory = options.folder / "runs/day"
            while process.poll() is None and not (directory / "metrics.jsonl").exists():
                time.sleep(1)
            follow(directory, psutil.Process(process.pid), options.samples)


if __name__ == "__main__":
    main()
