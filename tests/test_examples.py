"""The folders of examples/ and docs/tutorial.md, done as they say. Tests of tools run `tool`, and
tests/test_documented_commands.py runs `environment`."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slime.compose.compose import examine
from slime.observe.metrics import HELD_OUT
from tests.running import NO_CHECKPOINTS, Run
from tests.typed import EXAMPLES, GUIDES, commands, settings

TUTORIAL = GUIDES / "tutorial.md"
READMES = sorted(file for file in EXAMPLES.glob("*/README.md") if file.parent.name != "notebook")
runs = pytest.mark.slow
pytestmark = pytest.mark.timeout(900)


def in_checkout(folder: Path, demo: Run | None = None) -> Path:
    """A folder with the examples, and what the demo left in its place."""
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(EXAMPLES)
    if demo:
        (folder / "runs").mkdir()
        (folder / "runs/glm4-tiny-local").symlink_to(demo.path)
    return folder


def type_in(folder: Path, command: str) -> str:
    """What a command that is neither a run nor a plan prints."""
    program, *words = shlex.split(command)
    module = {"slime": ["-m", "slime"], "python": []}[program]
    done = subprocess.run([sys.executable, *module, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def held_out(run: Run) -> list[float]:
    return [row[HELD_OUT] for row in run.rows("rl") if HELD_OUT in row]


def test_there_are_six_whole_examples_of_ten_lines_each() -> None:
    assert {file.parent.name for file in READMES} == {
        "reward", "tool", "agent", "environment", "lora", "distillation",
    }  # fmt: skip
    for file in READMES:
        assert len(file.read_text().splitlines()) <= 13, file
        assert f"({file.parent.name})" in (EXAMPLES / "README.md").read_text()


@pytest.mark.parametrize("readme", READMES, ids=lambda file: file.parent.name)
def test_the_commands_of_an_example_have_a_plan(
    readme: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for what is to be fetched first, or what the demo leaves."""
    monkeypatch.chdir(in_checkout(tmp_path))
    lines = commands(readme)
    for line in lines:
        if line.startswith("python "):
            type_in(tmp_path, line)
    planned = [shlex.split(line) for line in lines if "+model=" in line]
    assert planned
    for words in planned:
        problems = examine([word for word in words if "=" in word]).problems
        assert [problem for problem in problems if not re.search(r"there is no '|is missing", problem.what)] == []


@pytest.mark.parametrize("page", [*EXAMPLES.glob("**/README.md")], ids=lambda page: page.parent.name)
def test_links_of_an_example_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    assert links
    assert [link for link in links if not (page.parent / link).exists()] == []


@runs
def test_the_tutorial_and_the_example_of_a_reward_work_as_written(taught: Run, tmp_path: Path) -> None:
    """Behind the demo, whose command is that of tests/test_demo.py: the reader's own run learns from its own rows."""
    text, lines = TUTORIAL.read_text(), commands(TUTORIAL)
    assert lines[:2] == ["make demo", "source .venv/bin/activate"]
    folder = in_checkout(tmp_path, taught)
    demo, [look, make, check, train, score, again] = held_out(taught), lines[2:]
    assert demo[0] < 0.4
    assert demo[-1] > 0.9
    assert [*map(shlex.split, commands(EXAMPLES / "reward/README.md"))] == [*map(shlex.split, (make, check, train))]
    assert re.search(r"```python\n(.*?)```", text, re.S)[1] == (EXAMPLES / "reward/my_reward.py").read_text()  # type: ignore[index]
    assert "prompt" in type_in(folder, look)
    assert type_in(folder, make) == "1916 rows in till.jsonl, 64 in till-heldout.jsonl\n"
    assert json.loads((folder / "till.jsonl").read_text().splitlines()[0]).keys() == {"prompt", "label"}
    assert "`till.jsonl` has 1,916 rows, and `till-heldout.jsonl` 64 others" in text
    paid = type_in(folder, check)
    for line in re.search(r"```text\n(right.*?)```", text, re.S)[1].splitlines():  # type: ignore[index]
        assert line in paid

    run = Run(folder, settings=settings(train), shortened={}, forked=True).start().succeed()
    first, last = held_out(run)
    assert first < 0.05, "0.000, says the page"
    assert last > 0.95, "1.000"
    lengths = [row["rollout/response_length_mean"] for row in run.rows("rl") if "rollout/response_length_mean" in row]
    assert lengths[0] > 6 > 4 > lengths[-1]
    assert [score, again] == ["slime eval runs/till", "slime samples runs/till"]
    type_in(folder, score.replace("till", "it"))
    scored = json.loads((run.path / "eval/step-000010/result.json").read_text())
    assert scored["metrics"][HELD_OUT] == last
    assert re.search(r"│ \d\d +│", type_in(folder, again.replace("till", "it"))), "the total alone"


@runs
def test_the_agent_learns(taught: Run, tmp_path: Path) -> None:
    folder = in_checkout(tmp_path, taught)
    [make, train] = commands(EXAMPLES / "agent/README.md")
    type_in(folder, make)
    run = Run(folder, settings={**settings(train), **NO_CHECKPOINTS}, shortened={}, forked=True).start().succeed()
    rewards = [row["rollout/reward_mean"] for row in run.rows("rl")]
    assert rewards[0] < 0.2
    assert rewards[-1] > 0.5


@runs
def test_the_student_learns_from_the_demo_s_model(taught: Run, demonstrated: dict[str, Any], tmp_path: Path) -> None:
    in_checkout(tmp_path, taught)
    [train] = commands(EXAMPLES / "distillation/README.md")
    run = Run(tmp_path, settings=settings(train), shortened=demonstrated, forked=True).start().succeed()
    first, *_, last = held_out(run)
    assert first < 0.4
    assert last > 0.85
    distances = [row["train/teacher_kl"] for row in run.rows("rl") if "train/teacher_kl" in row]
    assert distances[-1] < distances[0] / 2


@runs
def test_the_adapters_of_one_gpu_train_a_tiny_model_here(demonstrated: dict[str, Any], tmp_path: Path) -> None:
    """The example's keys of training, on the laptop's model and sums."""
    command = shlex.split(commands(EXAMPLES / "lora/README.md")[-1])
    keys = dict(word.split("=", 1) for word in command if word.startswith("train."))
    assert keys["train.lora.rank"] == "32"
    few = {**demonstrated, "run.num_steps": 2, "rollout.prompts_per_step": 4, "eval.path": "null"}
    run = Run(tmp_path, settings=keys, shortened=few, forked=True).start().succeed()
    assert len(run.losses()) == 2
    assert (run.path / "adapter/adapter_model.safetensors").exists()


@runs
def test_the_notebook_runs(tmp_path: Path) -> None:
    """Its cells of code, in their order, in one process."""
    cells = json.loads((EXAMPLES / "notebook/run.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "MPLBACKEND": "agg"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    first, last = map(float, re.search(r"held-out (\S+) -> (\S+)", done.stdout).groups())  # type: ignore[union-attr]
    assert last > first + 0.3
    assert (tmp_path / "reward.png").stat().st_size > 5000
