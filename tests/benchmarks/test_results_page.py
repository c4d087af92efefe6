"""docs/results.md says what the files in benchmarks/results say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/results.md").read_text(encoding="utf-8")


def test_every_run_of_the_files_is_a_row(program: Any) -> None:
    rows = [
        program.table_row(run, steps, warm)
        for name, warm in program.FILES.items()
        for run, steps in program.read(name).items()
    ]
    assert len(rows) >= 2
    assert [row for row in rows if row not in PAGE.splitlines()] == []


def test_the_run_that_went_wrong_is_one_of_them(program: Any) -> None:
    by_step = {int(row["step"]): row for row in program.read("smollm2-h200")["recipe"]}
    for step in (20, 40, 80, 240):
        row = by_step[step]
        shown = f"{row['held_out']:.3f} | {row['length']:.0f} | {row['entropy']:.2f} | {row['zero_variance']:.0%}"
        assert f"| {step} | {shown.replace('%', ' %')} |" in PAGE


def test_a_run_is_added_and_drawn(program: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [{"stage": "sft", "step": 1, "time": 1.0}, {"stage": "rl", "step": 0, "time": 5.0, "eval/reward_mean": 0.25}]
    step = {"rollout/reward_mean": 0.5, "rollout/response_length_mean": 7.0, "train/entropy": 1.5, "seconds/step": 2.0}
    rows += [{"stage": "rl", "step": number, "time": 5.0 + 2 * number, **step} for number in range(1, 60)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(program, "RESULTS", tmp_path)
    for run in ("a", "b"):
        program.add(run, "runs", tmp_path / "metrics.jsonl")
    runs = program.read("runs")
    assert (
        program.table_row("b", runs["b"]) == "| b | 0.250 | 0.250 | 0.250 | 59 | 2.0 | 2.00 | 7 to 7 | 1.50 to 1.50 |"
    )
    program.draw(runs, tmp_path / "runs.png")
    assert (tmp_path / "runs.png").read_bytes().startswith(b"\x89PNG")


def test_calls_of_tools_are_a_column_where_a_run_has_them(program: Any, monkeypatch: Any, tmp_path: Path) -> None:
    """And a file that was begun without them keeps its columns."""
    rows = [{"stage": "rl", "step": 0, "time": 5.0, "eval/reward_mean": 0.25}]
    step = {"rollout/response_length_mean": 7.0, "train/entropy": 1.5, "seconds/step": 2.0}
    rows += [{"stage": "rl", "step": number, "time": 5.0 + 2 * number, **step} for number in range(1, 9)]
    called = [{**row, "rollout/calls_mean": row["step"] / 8} if row["step"] else row for row in rows]
    for name, found in (("plain", rows), ("called", called)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    monkeypatch.setattr(program, "RESULTS", tmp_path)
    program.add("a", "old", tmp_path / "plain.jsonl")
    for name in ("old", "new"):
        program.add("b", name, tmp_path / "called.jsonl")
    assert program.table_row("b", program.read("old")["b"], 5).endswith("| 7 to 7 | 1.50 to 1.50 |")
    assert program.table_row("b", program.read("new")["b"], 5).endswith("| 1.50 to 1.50 | 0.12 to 1.00 |")
    program.draw(program.read("new"), tmp_path / "new.png")
    program.draw(program.read("old"), tmp_path / "old.png")
    widths = [int.from_bytes((tmp_path / f"{name}.png").read_bytes()[16:20]) for name in ("old", "new")]
    assert widths[1] * 3 == widths[0] * 4, "a fourth picture beside three"
