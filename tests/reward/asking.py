"""What the tests of rewards share: a service of the misbehaving reward, and how to ask it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from slime.config.schema import RewardConfig
from slime.reward.service import RewardService
from slime.types import Verdict
from tests.reward.misbehaving import sample
from tests.waiting import until

TIMEOUT_S, GONE_WITHIN_S = 200.0, 60.0
"""Killing takes milliseconds; the rest is for a busy machine, and less than what waits for the timeout takes."""

IMPATIENT_S = 1.5
"""What hangs takes it; what forks a few processes has no core for a part of it."""


def rewards(log: Path | None = None, hidden: Sequence[Path] = (), **keys: Any) -> RewardService:
    given = {"name": "misbehaving", "timeout_s": TIMEOUT_S, "memory_mb": 256, **keys}
    return RewardService(RewardConfig(**given), log, hidden)


def score(service: RewardService, behaviour: str, label: Any = None) -> Verdict:
    return asyncio.run(service.score(sample(behaviour, label)))


def wait_until_gone(pids: list[int]) -> None:
    until(lambda: not any(map(psutil.pid_exists, pids)), told=lambda: [*filter(psutil.pid_exists, pids)])
