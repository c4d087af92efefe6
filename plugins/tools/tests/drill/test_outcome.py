"""What two runs have in common: whatever is no time is compared, to the bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from slime_tools.drill.outcome import Outcome

ROW = {"stage": "rl", "step": 1, "time": 1.0, "train/loss": 0.5, "seconds/step": 3.0, "engines/restarts": 1.0}
SAMPLE = {"prompt": "0/1", "sample": 0, "reward": 1.0, "response": "4", "messages": []}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    for folder in ("samples", "export"):
        (path / folder).mkdir(parents=True)
    (path / "metrics.jsonl").write_text(json.dumps(ROW) + "\n")
    (path / "samples/step-000001.jsonl").write_text(json.dumps(SAMPLE) + "\n")
    save_file({"weight": torch.ones(3)}, path / "export/model.safetensors")
    return path


def differences(run: Path, other: Path) -> list[str]:
    return [*Outcome.of(run).differences(Outcome.of(other))]


def test_times_and_restarts_do_not_count(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "other")
    again = ROW | {"time": 9.0, "seconds/step": 40.0, "engines/restarts": 2.0, "trainers/seconds_lost": 9.0}
    again |= {"publish/num_bytes_sent": 9.0}
    (tmp_path / "other/metrics.jsonl").write_text(json.dumps(again) + "\n")
    assert Outcome.of(run) == Outcome.of(tmp_path / "other")
    assert differences(run, tmp_path / "other") == []


def test_each_difference_is_named(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    rows = [ROW | {"train/loss": 0.5 + 2**-53}, ROW | {"step": 2}]
    (other / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (other / "samples/step-000001.jsonl").write_text(json.dumps(SAMPLE | {"response": "5"}) + "\n")
    save_file({"weight": torch.tensor([1, 1, 1 + 2**-23])}, other / "export/model.safetensors")
    assert differences(run, other) == [
        "rl 1: train/loss",
        "rl 2: train/loss",
        "samples: step-000001",
        "weights: export/model.safetensors",
    ]
