"""docs/writing-a-reward-plugin.md, done as it says."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

GUIDE = (Path(__file__).parents[2] / "docs/writing-a-reward-plugin.md").read_text()
FILE = re.compile(r"^`([^`\n]+)`\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ slime (.+)$", re.MULTILINE)
FILES = dict(FILE.findall(GUIDE))


def test_the_plugin_has_twenty_lines() -> None:
    code = FILES["slime_brevity/__init__.py"]
    ast.parse(code)
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 20, f"{len(lines)} lines"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_guide_works_as_written(environment: Any, tmp_path: Path) -> None:
    for name, text in FILES.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    environment.build(tmp_path / "project")
    installed = environment.beside(tmp_path / "site", "slime-brevity")
    commands = [shlex.split(command) for command in COMMAND.findall(GUIDE)]
    shown = [installed.slime(*command) for command in commands]
    assert [result.returncode for result in shown] == [0, 0], [result.stderr for result in shown]
    assert all("slime-brevity 0.1.0" in result.stdout for result in shown)
    tested = installed.run("-m", "pytest", "-c", "/dev/null", tmp_path / "project/tests")
    assert "2 passed" in tested.stdout, tested.stdout
