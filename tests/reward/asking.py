"""What the tests of rewards share: a service of the misbehaving reward, and how to ask it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from slime.config.schema import RewardConfig
from slime.reward.service import RewardService
from slime.types import Verdict
from tests.reward.misbehaving import sample

GONE_WITHIN_S = 10.0  # killing takes milliseconds; the rest is for a busy machine


def rewards(log: Path | None = None, hidden: Sequence[Path] = (), **keys: Any) -> RewardService:
    given = {"name": "misbehaving", "timeout_s": 30.0, "memory_mb": 256, **keys}
    return RewardService(RewardConfig(**given), log, hidden)


def score(service: RewardService, behaviour: str, label: Any = None) -> Verdict:
    return asyncio.run(service.score(sample(behaviour, label)))


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    while alive := [pid for pid in pids if psutil.pid_exists(pid)]:
        assert time.monotonic() < deadline, f"still alive: {alive}"
        time.sleep(0.01)
