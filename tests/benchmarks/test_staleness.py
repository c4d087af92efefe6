"""The comparison of staleness 0, 1 and 2: its runs are accepted, and its table says what they measured."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from slime.compose.compose import examine

FILE = Path(__file__).parents[2] / "benchmarks/staleness.py"


@pytest.mark.parametrize(("bound", "publish"), [(0, None), (1, None), (2, None), (1, "keep"), (1, "abort")])
def test_its_runs_are_accepted(program: Any, bound: int, publish: str | None, tmp_path: Path) -> None:
    lines = re.findall(r"benchmarks/staleness\.py (\+[^#\n]*?)(?: +#| --|$)", FILE.read_text(), re.M)
    assert len(lines) == 4
    for line in lines:
        words = [word for word in line.split() if not word.startswith("model.path=")]
        assert examine([*words, *program.settings(bound, publish, tmp_path)]).problems == []


def test_its_table_leaves_the_first_steps_out(program: Any) -> None:
    times = {"seconds/generate": 0.5, "seconds/train": 1.0, "seconds/publish": 0.25, "seconds/other": 0.25}
    rows = [{"stage": "rl", "step": 0, "eval/reward_mean": 0.25}]
    rows += [
        {
            "stage": "rl",
            "step": step,
            "time": 100.0 + 2 * step,
            "train/loss": 0.1,
            "seconds/step": 100.0 if step < 4 else 2.0,
            "train/num_tokens": 100.0,
            "rollout/num_tokens": 50.0,
            "rollout/overlap_share": 0.5,
            "rollout/weight_lag_mean": 1.0,
            **times,
        }
        for step in range(1, 8)
    ]
    rows.append({"stage": "rl", "step": 7, "eval/reward_mean": 0.75})
    cells = "| staleness-1 | 2.00 | 0.50 | 1.00 | 0.25 | 0.25 | 50 | 50% | 1.00 |"
    assert program.row("staleness-1", rows) == f"{cells}  | 0.750 |"
    samples = [(105.0, [1.0, 1.0]), (107.0, [0.5, 0.75]), (113.0, [0.5, 1.0]), (115.0, [0.0, 0.0])]
    assert program.row("staleness-1", rows, samples) == f"{cells} 31% (50%, 12%) | 0.750 |"
