"""The benchmark of changed folders, on a sample of its changes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slime_testing.patience import run_within

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_a_sample_of_changes_is_the_same_or_refused() -> None:
    """Families with rotary fields of one kind, of a kind a layer, and with YaRN and experts."""
    families = ("llama", "gemma3_text", "deepseek_v3")
    command = [sys.executable, "-W", "ignore", "folders.py", "--families", *families, "--every", "17"]
    printed = run_within(110, command, cwd=BENCHMARKS).stdout
    rows = [line.split("|")[1:-1] for line in printed.splitlines() if line.startswith("| ")][1:]
    assert [row[0].strip() for row in rows] == list(families)
    for _, tried, same, off, refused, alone, different in rows:
        assert int(tried) > 25
        assert int(same) > 2
        assert int(refused) > 15
        assert int(same) + int(refused) + int(alone) == int(tried), printed
        assert int(different) == 0, printed
        assert float(off) < 1e-4
