"""docs/algorithms.md shows what was recorded, of runs that slime accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slime.compose.compose import compose

ROOT = Path(__file__).parents[2]


def test_every_algorithm_is_a_row_and_learns(program: Any, tmp_path: Path) -> None:
    page = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8").splitlines()
    assert [name for name in program.ALGORITHMS if program.table_row(name) not in page] == []
    held_out = program.curves("held_out")
    assert held_out.keys() == program.ALGORITHMS.keys()
    assert all(steps[0] < 0.4 and steps[20] > 0.9 and len(steps) == 21 for steps in held_out.values())
    assert {name for names in program.PANELS.values() for name in names} == program.ALGORITHMS.keys()
    assert {*program.TAUGHT} <= program.curves("held_out", program.OF_TEACHERS, "way").keys()
    program.draw(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_supervised_steps_are_recorded_ten_to_a_row(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "OF_DEMONSTRATIONS", tmp_path / "sft.csv")
    rows = [{"stage": "sft", "step": n, "train/loss": 1.0 / n, "train/entropy": 0.5} for n in range(1, 13)]
    lines = "\n".join(map(json.dumps, [*rows, {"stage": "rl", "step": 0, "eval/reward_mean": 0.3}]))
    (tmp_path / "metrics.jsonl").write_text(lines)
    program.record_demonstrations(tmp_path)
    assert (tmp_path / "sft.csv").read_text() == "step,loss,entropy\n10,0.2929,0.5000\n12,0.0871,0.5000\n"


def test_its_runs_are_accepted(program: Any) -> None:
    assert compose(list(program.SUPERVISED)).algo.name == "sft"
    for words in program.ALGORITHMS.values():
        composed = compose([*program.REINFORCED, "model.init=random", *words])
        assert composed.train.steps_per_rollout == 4
