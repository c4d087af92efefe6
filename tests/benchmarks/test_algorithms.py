"""docs/algorithms.md shows what was recorded, of runs that slime accepts."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from slime.compose.compose import compose

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("algorithms")


def test_every_algorithm_is_a_row_and_learns(benchmark: Any, tmp_path: Path) -> None:
    page = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8").splitlines()
    assert [name for name in benchmark.ALGORITHMS if benchmark.table_row(name) not in page] == []
    held_out = benchmark.curves("held_out")
    assert held_out.keys() == benchmark.ALGORITHMS.keys()
    assert all(steps[0] < 0.4 and steps[20] > 0.9 and len(steps) == 21 for steps in held_out.values())
    assert {name for names in benchmark.PANELS.values() for name in names} == benchmark.ALGORITHMS.keys()
    benchmark.draw(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_its_runs_are_accepted(benchmark: Any) -> None:
    assert compose(list(benchmark.SUPERVISED)).algo.name == "sft"
    for words in benchmark.ALGORITHMS.values():
        composed = compose([*benchmark.REINFORCED, "model.init=random", *words])
        assert composed.train.steps_per_rollout == 4
