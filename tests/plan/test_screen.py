"""The plan on one screen, and that `--all` and `--json` stay whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from slime.__main__ import main
from slime.compose.compose import examine
from slime.plan.report import report
from slime.plan.screen import LABEL, WIDTH, screen
from slime.plugins import load

MAX_LINES = 24
WANTED = {"run", "model", "recipe", "grpo", "checkpoints", "reward", "layout", "disk"}


def labels(text: str) -> set[str]:
    return {line.split(maxsplit=1)[0] for line in text.split("\n\n")[0].splitlines() if line[0] != " "}


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (["+model=glm4-tiny", "+cluster=local"], {"supervised", "evaluation"}),
        (["+model=glm4-tiny", "+cluster=local", "task=calculator"], {"supervised", "evaluation", "program"}),
        (["+model=glm4-9b", "+cluster=h100x8"], {"evaluation", "memory", "seconds"}),
        (["+model=glm5.2", "+cluster=h100x256"], {"importance", "memory", "seconds"}),
        (
            ["+model=deepseek-r1", "+cluster=h100x128"],
            {"evaluation", "filter", "surplus", "importance", "memory", "seconds"},
        ),
    ],
)
def test_a_plan_is_one_screen(words: list[str], more: set[str]) -> None:
    text = screen(examine(words), load())
    lines = text.splitlines()
    assert len(lines) <= MAX_LINES
    assert all(len(line) <= WIDTH or " " not in line[LABEL:] for line in lines)  # a path is not broken
    assert labels(text) == WANTED | more


def test_all_has_each_row_of_the_screen_and_more(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["+model=glm4-tiny", "+cluster=local"]
    assert main(["plan", *words, "--all"]) == 0
    whole = capsys.readouterr().out
    assert whole == report(examine(words), load()) + "\n"
    assert {"processes", "learning", "disk"} <= {*whole.splitlines()}
    assert main(["plan", *words]) == 0
    assert capsys.readouterr().out == screen(examine(words), load()) + "\n"


def test_what_may_be_wrong_comes_first(tmp_path: Path) -> None:
    words = ["+model=glm4-9b", "+cluster=h100x8", "run.seed=1", "run.seed=2"]
    command = [sys.executable, "-m", "slime", "plan", *words]
    shown = subprocess.check_output(command, cwd=tmp_path, stderr=subprocess.STDOUT, text=True)
    kinds = [re.split(r"[:\s]", line.removeprefix("slime: "))[0] for line in shown.splitlines()]
    assert kinds[:5] == ["note", "before", "before", "before", "run"]


def test_options_and_the_run_file_are_told(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("reward.options.wrong_value: -1.0\n")
    text = screen(examine(["+model=glm4-tiny", "+cluster=local", f"{tmp_path}/my.yaml"]), load())
    assert re.search(r"^reward +arithmetic \(slime-rewards .*\): wrong_value=-1\.0$", text, re.MULTILINE)
    assert "task arithmetic, under" in text
