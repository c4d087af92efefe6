"""Answers per second of the reward `code`: `python benchmarks/code_reward.py [--workers N] [--seconds S]`.

Prints the conditions beside the number: a test is a Python interpreter that starts, so it depends on the machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor

from slime_rewards.code.sandbox import Spec, missing, run

CODE = "def add(a, b):\n    return a + b"


def answers(seconds: float) -> int:
    """Tests that one thread runs in this time."""
    end, num = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        assert run(Spec(CODE, "add(3, 4)")).output == "7"
        num += 1
    return num


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=10.0)
    asked = parser.parse_args()
    assert not missing(), missing()
    load, began = os.getloadavg()[0], time.monotonic()
    with ThreadPoolExecutor(asked.workers) as pool:
        num = sum(pool.map(answers, [asked.seconds] * asked.workers))
    took = time.monotonic() - began
    cores = len(os.sched_getaffinity(0))
    print(f"Linux {platform.release()}, Python {platform.python_version()}, {cores} cores, load {load:.1f} before")
    print(f"{asked.workers} workers, a test each answer: {num / took:.1f} answers/s")


if __name__ == "__main__":
    main()
