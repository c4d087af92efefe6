"""Estimates beside runs that were measured: how near they are, and that the layouts of two GPUs can be measured."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from slime.compose.compose import examine
from slime_testing.patience import run_within

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_order_is_spearmans(program: ModuleType) -> None:
    """Five pairs worked by hand: 1 - 6 sum(d^2) / (n (n^2 - 1)), with d = 0, 1, -1, 0, 0."""
    pairs = [(1.0, 10.0), (2.0, 40.0), (3.0, 20.0), (4.0, 50.0), (9.0, 60.0)]
    assert program.order(pairs) == pytest.approx(1 - 6 * 2 / (5 * 24))


@pytest.mark.slow
def test_training_is_foretold_within_a_sixth_and_whole_steps_of_large_models_too(program: ModuleType) -> None:
    """What is left over is named in `benchmarks/results/plan-beside-measured.md`."""
    table = tomllib.loads(program.TABLE.read_text())
    ratios = [program.estimated(row) / row["seconds"] for row in table["training"]]
    assert all(1 / 1.2 < ratio < 1.15 for ratio in ratios)
    large = [row for row in table["step"] if "+model=glm4-9b-trial" in row["words"] and "training" in row]
    for row in large:
        found = program.of_step(row)
        parts = [part for part in ("training", "generation", "moves", "publish") if part in row]
        assert sum(found[part] for part in parts) == pytest.approx(sum(row[part] for part in parts), rel=0.15)


def test_the_eight_layouts_fit_two_gpus_and_are_not_alike(program: ModuleType) -> None:
    rows = [program.layout_row(row) for row in tomllib.loads(program.TABLE.read_text())["layout"]]
    assert len({program.name_of(row) for row in rows}) == 8
    for row in rows:
        assert [str(problem) for problem in examine(program.words_of(row, "")).problems] == []
        dp = 2 // (row.get("tensor", 1) * row.get("pipeline", 1) * row.get("context", 1))
        assert row["packs"] * dp * row["pack"] == 128 * 1024, "all train on the same number of tokens"


@pytest.mark.slow
def test_layouts_are_measured_on_a_cpu() -> None:
    """Two of them, cut by tensors and by layers, with packs of a sixteenth."""
    words = ["plan_beside_measured.py", "--measure", "--device", "cpu", "--tiny", "--only", "0", "3"]
    printed = run_within(170, [sys.executable, "-W", "ignore", *words], cwd=BENCHMARKS)
    rows = [line.split("|")[1:-1] for line in printed.stdout.splitlines() if line.startswith("| TP")]
    assert [row[0].strip() for row in rows] == ["TP 2, PP 1", "TP 1, PP 2"]
    for row in rows:
        assert float(row[5].replace(",", "")) == pytest.approx(128 * 64 / float(row[3]), rel=0.02)
    assert "rank correlation" in printed.stdout
