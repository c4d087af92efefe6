"""What the chaos benchmark does beside breaking things: runs that slime accepts, tables that keep their places."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slime.compose.compose import examine


def test_its_runs_are_accepted_and_leave_a_mark(program: Any, tmp_path: Path) -> None:
    run = program.Chaos(tmp_path)
    words = [f"{key}={value}" for key, value in program.LONG.items()]
    command = [sys.executable, "-m", "slime", "plan", "+model=glm4-tiny", "+cluster=local", *words]
    done = subprocess.run(command, env=os.environ | run.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert run.lines() == ["start begin"]


def test_what_it_interrupts_is_accepted(program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = importlib.import_module("chaos_kinds")
    kinds.write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in kinds.RUNS:
        words = kinds.words_of(name, tmp_path, "", {})
        if not any(str(tmp_path) in word for word in words):  # what the others take is made first
            assert examine(words).problems == [], name


def test_a_table_takes_the_place_of_the_one_of_its_name(program: Any, tmp_path: Path) -> None:
    file = tmp_path / "chaos.md"
    for name, text in [("hangs", "old"), ("rewards", "kept"), ("kills", "first"), ("hangs", "new")]:
        program.put(file, name, f"## {name}\n\n{text}\n")
    titles = [line for line in file.read_text().splitlines() if line.startswith("#")]
    assert [title.split()[1] for title in titles[1:]] == ["kills", "hangs", "rewards"]
    assert "new" in file.read_text()
    assert "old" not in file.read_text()
