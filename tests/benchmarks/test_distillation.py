"""docs/distillation.md shows what was recorded, of runs that slime accepts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from slime.compose.compose import compose
from slime.config.paths import resolve
from tests.headers import write_headers

ROOT = Path(__file__).parents[2]


def test_every_way_is_a_row_and_a_teacher_needs_fewer_samples(program: Any) -> None:
    page = (ROOT / "docs/distillation.md").read_text(encoding="utf-8").splitlines()
    assert [way for way in program.WAYS if program.table_row(way) not in page] == []
    held_out = program.held_out()
    assert held_out.keys() == program.WAYS.keys()
    assert all(steps[0] < 0.4 and steps[20] > 0.9 and len(steps) == 21 for steps in held_out.values())
    steps = {way: program.enough(found) for way, found in held_out.items()}
    assert 4 * 64 * steps["opd, 64 samples"] <= 256 * steps["grpo"]


def test_the_teacher_s_demonstrations_show_their_work(program: Any, tmp_path: Path) -> None:
    rows = [json.loads(row) for row in program.careful(tmp_path).read_text().splitlines()]
    assert 1500 < len(rows) < 3000
    for row in rows:
        prompt, answer = (message["content"] for message in row["messages"])
        assert int(answer.rpartition("=")[2]) == sum(map(int, prompt.rstrip("=").split("+")))


def test_its_runs_are_accepted(program: Any, tmp_path: Path) -> None:
    teacher = shutil.copytree(resolve("pkg://slime_plugin_glm4/assets/glm4-tiny"), tmp_path / "teacher")
    write_headers(Path(teacher))
    for way in program.WAYS:
        composed = compose(list(program.words_of(way, teacher, teacher)))
        assert (composed.algo.teacher.path is not None) == way.startswith("opd")
