"""The same run in every placement: where things lie and how weights travel differ, the result does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.running import NO_CHECKPOINTS, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PLACEMENTS: dict[str, dict[str, Any]] = {
    "colocated": {"cluster.placement": "colocated"},
    "broadcast": {"weights.transport": "broadcast", **NO_CHECKPOINTS},
}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_placement_changes_no_bit(name: str, finished: Run, tmp_path: Path) -> None:
    run = Run(tmp_path, settings=PLACEMENTS[name]).start().succeed()
    assert run.weights() == finished.weights()
    assert run.losses() == finished.losses()
    moved = [row for row in run.rows("rl") if "seconds/offload" in row]
    assert bool(moved) is (name == "colocated")
