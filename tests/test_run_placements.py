"""The same run in every placement: where things lie and how weights travel differ, the result does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.running import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SHORT: dict[str, Any] = {"run.num_steps": 3, "sft.num_steps": 3, "eval.path": "null"}
PLACEMENTS: dict[str, dict[str, Any]] = {
    "colocated": {"cluster.placement": "colocated"},
    "broadcast": {"weights.transport": "broadcast"},
}


def trained(folder: Path, settings: dict[str, Any]) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    run = Run(folder, settings={**SHORT, **settings}).start().succeed()
    return load_file(run.path / "export/model.safetensors"), run.rows("rl")


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """Trainer and engine on devices of their own, weights through shared memory."""
    return trained(tmp_path_factory.mktemp("usual"), {})


@pytest.mark.parametrize("name", PLACEMENTS)
def test_placement_changes_no_bit(name: str, usual: Any, tmp_path: Path) -> None:
    weights, rows = trained(tmp_path, PLACEMENTS[name])
    assert weights.keys() == usual[0].keys()
    assert all(torch.equal(weights[key], usual[0][key]) for key in weights)
    assert [row["train/loss"] for row in rows if "train/loss" in row] == [
        row["train/loss"] for row in usual[1] if "train/loss" in row
    ]
    moved = [row for row in rows if "seconds/offload" in row]
    assert bool(moved) is (name == "colocated")
