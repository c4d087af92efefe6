"""How long the live page of a long run takes to open, and to follow a step, in the system's Chromium.

    python benchmarks/watch_page.py --steps 10000

The run is a folder with rows of a laptop run's metrics, over and over; `slime watch` and the browser are the real ones.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import conditions
from playwright.sync_api import Page, sync_playwright

NUM_METRICS = 70
"""Names a row, as a run of several engines on GPUs has them."""
NUM_FOLLOWED = 10
SHOWN = "() => document.title.endsWith('rl %d') && !!document.querySelector('.plot.large canvas')"


def row(step: int) -> str:
    noise = random.Random(step)
    values = {f"train/metric_{number}": noise.random() for number in range(NUM_METRICS)}
    known = {"rollout/reward_mean": noise.random(), "seconds/step": 3.0, "seconds/generate": 2.0, "seconds/train": 0.9}
    return json.dumps({"stage": "rl", "step": step, "time": 1e9 + step, **known, **values}) + "\n"


def wait(page: Page, step: int) -> float:
    """Seconds until the page shows `step`."""
    started = time.perf_counter()
    while not page.evaluate(SHOWN % step):
        time.sleep(0.02)
    return time.perf_counter() - started


def measure(folder: Path, num_steps: int) -> dict[str, Any]:
    metrics = folder / "metrics.jsonl"
    metrics.write_text("".join(row(step) for step in range(1, num_steps + 1)))
    command = [sys.executable, "-m", "slime", "watch", str(folder)]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch, sync_playwright() as playwright:
        assert watch.stdout
        _, address, _ = (watch.stdout.readline() for _ in range(3))
        ready = time.perf_counter() - started
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        started = time.perf_counter()
        page.goto(address.split()[-1])
        wait(page, num_steps)
        opened = time.perf_counter() - started
        followed = []
        for step in range(num_steps + 1, num_steps + 1 + NUM_FOLLOWED):
            with metrics.open("a") as file:
                file.write(row(step))
            followed.append(wait(page, step))
        browser.close()
        watch.send_signal(signal.SIGINT)
    return {"MB of metrics": metrics.stat().st_size / 1e6, "s to the address": ready, "s to open": opened,
            "s to follow, median": statistics.median(followed), "s to follow, longest": max(followed)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    args = parser.parse_args()
    print(conditions())
    with tempfile.TemporaryDirectory() as folder:
        for name, value in measure(Path(folder), args.steps).items():
            print(f"{name:<24}{value:8.2f}")


if __name__ == "__main__":
    main()
