"""How long the live page takes to open, to draw and to answer its reader, in the system's Chromium.

    python benchmarks/watch_page.py --case 1x2000 --case 1x10000 --case 300x300 --case 300x300,all

A case is runs x steps: a folder with rows of a run's metrics; `slime watch` and the browser are the real ones. With
`all`, all runs are drawn (of more than twelve, six are at first). Prints a row a case, in time of the processor: what a
quiet machine takes, also where others work on it. `slime runs` is in it, too.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import psutil
from machine import conditions
from omegaconf import OmegaConf
from playwright.sync_api import Page, sync_playwright

from slime.compose.compose import compose
from slime.run_config import container

NUM_METRICS = 70
"""Names a row, as a run of several engines on GPUs has them."""
NUM_TRIES = 20
"""Moves and changes, of which the table has the median and the longest."""
DRAWN = "!undrawn.size && !!document.querySelector('.plot.large canvas')"
TIMED = """async (at) => {
  %s;
  while (%s && undrawn.size) await new Promise(requestAnimationFrame);
  for (const _ of [1, 2]) await new Promise(requestAnimationFrame);
}"""
"""Ends when what a script changes is drawn and the next frame begins: on the screen, or all plots."""
ACTS = {
    "smooth": "const slider = document.querySelector('[type=range]'); slider.value = 0.4 + at / 100;"
    " slider.dispatchEvent(new Event('input'))",
    "pan": "zoomTo('rl', {min: 10 + at, max: 110 + at})",
    "hover": "[...shownPlots].find((plot) => plot.plot.large).uplot.setCursor({left: 10 + 5 * at, top: 40 + at})",
}


def row(step: int, run: int) -> str:
    noise = random.Random(f"{step} {run}")
    values = {f"train/metric_{number}": noise.random() for number in range(NUM_METRICS - 10)}
    known = {"rollout/reward_mean": noise.random() + run, "seconds/step": 3.0, "seconds/generate": 2.0}
    known |= {"seconds/train": 0.9, "tokens_per_s": 1000.0, "train/lr": 1e-5, "train/grad_norm": noise.random()}
    known |= {"train/entropy": noise.random(), "train/logprob_diff_mean": 1e-6 * noise.random()}
    known |= {"eval/reward_mean": noise.random()} if step % 10 == 0 else {}
    return json.dumps({"stage": "rl", "step": step, "time": 1e9 + 3 * step, **known, **values}) + "\n"


@cache
def rows(run: int, num_steps: int) -> str:
    return "".join(row(step, run) for step in range(1, num_steps + 1))


def write(root: Path, num_runs: int, num_steps: int) -> list[Path]:
    """Runs of five seeds a learning rate, each with a config of a real run."""
    config, folders = container(compose(["+model=glm4-tiny", "+cluster=local"])), []
    for run in range(num_runs):
        folder = root / f"lr_{run // 5}-seed_{run % 5}"
        folder.mkdir(parents=True)
        config["run"] |= {"seed": run % 5, "name": folder.name, "num_steps": num_steps}
        config["train"]["optimizer"] = {"lr": (1 + run // 5) * 1e-6}
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
        (folder / "metrics.jsonl").write_text(rows(run % 10, num_steps))
        (folder / "status.json").write_text(json.dumps({"state": "finished", "started": 1e9 + run}))
        folders.append(folder)
    return folders


def wait(page: Page, condition: str) -> None:
    while not page.evaluate(condition):
        time.sleep(0.1)


class Browser:
    """What the browser counts of a page: time of its main thread (of the processor, not of a clock), and memory."""

    def __init__(self, page: Page) -> None:
        self._page, self._session = page, page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def _count(self, name: str) -> float:
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return next(float(each["value"]) for each in metrics if each["name"] == name)

    def seconds(self) -> float:
        return self._count("TaskDuration")

    def act(self, change: str, *, whole: bool = False) -> str:
        """Milliseconds that a change takes: the median and the longest."""
        script, found = TIMED % (ACTS[change], str(whole).lower()), []
        for at in range(NUM_TRIES):
            before = self.seconds()
            self._page.evaluate(script, at)
            found.append(1000 * (self.seconds() - before))
        return f"{statistics.median(found):.0f} ({max(found):.0f})"

    def megabytes(self) -> float:
        """Of JavaScript's objects, after a collection of garbage."""
        self._session.send("HeapProfiler.collectGarbage")
        return self._count("JSHeapUsedSize") / 1e6


def spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(root: Path, case: str) -> dict[str, Any]:
    sizes, _, extent = case.partition(",")
    num_runs, num_steps = (int(size) for size in sizes.split("x"))
    folders = write(root, num_runs, num_steps)
    megabytes = sum((folder / "metrics.jsonl").stat().st_size for folder in folders) / 1e6
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "slime", "runs", str(root), "--json"], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    listed = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    command = [sys.executable, "-m", "slime", "watch", str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch, sync_playwright() as playwright:
        assert watch.stdout
        _, address, _ = (watch.stdout.readline() for _ in range(3))
        server = psutil.Process(watch.pid)
        ready = spent(server)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(600_000)
        counted = Browser(page)
        page.goto(address.split()[-1])
        wait(page, DRAWN)
        if extent == "all":
            page.get_by_role("button", name="draw these").click()
            wait(page, f"document.title === '{num_runs} runs' && {DRAWN} && shownPlots.size"
                          f" && [...shownPlots].every((plot) => plot.lines.length >= {num_runs})")  # fmt: skip
        page.evaluate("document.querySelector('.plots').scrollIntoView()")
        found = {
            "runs x steps": case,
            "MB of metrics": f"{megabytes:.0f}",
            "`slime runs`, s": f"{listed:.1f}",
            "`slime watch` starts, s": f"{ready:.1f}",
            "page opens: server, s": f"{spent(server) - ready:.1f}",
            "browser, s": f"{counted.seconds():.1f}",
            "hover, ms": counted.act("hover"),
            "pan, ms": counted.act("pan"),
            "smooth: screen, ms": counted.act("smooth"),
            "all plots, ms": counted.act("smooth", whole=True),
            "page, MB": f"{counted.megabytes():.0f}",
            "server, MB": f"{server.memory_info().rss / 1e6:.0f}",
        }
        browser.close()
        watch.send_signal(signal.SIGINT)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", help="as 1x2000 or 300x300,all")
    args = parser.parse_args()
    chromium = subprocess.run(["chromium", "--version"], capture_output=True, text=True, check=True).stdout
    print(f"{conditions()}, {re.findall(r'Chromium [0-9.]+', chromium)[0]}, {NUM_METRICS} metrics a step\n", flush=True)
    for number, case in enumerate(args.case or ["1x2000"]):
        with tempfile.TemporaryDirectory() as root:
            found = measure(Path(root), case)
        if number == 0:
            print(f"| {' | '.join(found)} |\n|{'---|' * len(found)}")
        print(f"| {' | '.join(found.values())} |", flush=True)


if __name__ == "__main__":
    main()
