"""The table of tasks beside TRL's: its scripts compile, and slime's side is what the pages say today."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from slime.compose.compose import examine
from tests.typed import EXAMPLES

BENCHMARKS = EXAMPLES.parent / "benchmarks"
SCRIPTS = sorted((BENCHMARKS / "tasks_beside_trl").glob("*.py"))


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS / "tasks_beside_trl")
    return importlib.import_module("measure")


def test_scripts_compile_and_are_those_of_the_table(measure: ModuleType) -> None:
    for script in SCRIPTS:
        compile(script.read_text(), str(script), "exec")
    named = {file for task in measure.TASKS.values() for file in (*task.slime, *task.trl)}
    assert [file for file in named if not (measure.ROOT / file).is_file()] == []
    assert {script.name for script in SCRIPTS} - {Path(file).name for file in named} == {"measure.py"}


def test_the_page_has_what_is_counted_today(measure: ModuleType) -> None:
    assert measure.counts() in (BENCHMARKS / "results/tasks-beside-trl.md").read_text()


def test_lines_are_counted_without_blanks_comments_and_the_first_docstring(measure: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text('"""What\n\nit is."""\n\n# why\nimport re\n\n\ndef one():\n    return re  # it\n')
    assert measure.lines([tmp_path / "one.py"]) == 3


def test_commands_of_slime_are_accepted(
    measure: ModuleType, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for rows and a teacher, which are made first; of those whose command is changed by more than steps."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    for name in ("tool", "lora", "distillation", "supervised"):
        problems = examine(measure.slime_words(name, tiny_model)[3:]).problems
        assert [
            one for one in problems if not re.search(r"there is no '|is missing|neither model.safetensors", one.what)
        ] == [], name


def test_rows_get_the_forms_that_trl_reads(measure: ModuleType) -> None:
    row, asked = {"prompt": "24+15=", "label": "39"}, [{"role": "user", "content": "24+15="}]
    assert measure.for_trl("till", row) == {"prompt": asked, "label": "39"}
    assert measure.for_trl("sums", row | {"prompt": asked}) == {"prompt": asked, "label": "39"}
    assert measure.for_trl("gsm8k", row) == {"question": "24+15=", "answer": "#### 39"}
    told = [*asked, {"role": "assistant", "content": "39"}]
    assert measure.for_trl("demonstrations", {"messages": told}) == {"prompt": asked, "completion": told[1:]}
