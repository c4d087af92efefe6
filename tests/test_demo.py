"""The command that `make demo` runs, and what the README promises of it; the same with a reward of one's own."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from slime.observe.metrics import HELD_OUT
from tests.running import Run

REWARDS = Path(__file__).parents[1] / "docs/rewards.md"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_laptop_run_learns_to_add(tmp_path: Path) -> None:
    """At least 0.35 more, to over 0.85, on held-out problems that share none with the training sets: after a quarter of
    its reinforcement learning, which is no other for being cut short."""
    run = Run(tmp_path, shortened={"run.num_steps": 10}, forked=True).start().succeed()
    held_out = [row[HELD_OUT] for row in run.rows("rl") if HELD_OUT in row]
    assert held_out[-1] > 0.85
    assert held_out[-1] - held_out[0] >= 0.35

    before = {file: file.stat().st_mtime_ns for file in run.path.rglob("*")}
    again = Run(tmp_path, shortened=run.shortened, silence_s=60).start().succeed()
    assert again.text().endswith(
        "it: nothing is left to train: 810 of 810 steps are done. Raise `run.num_steps` to train on; for a new run set "
        "another `run.name`, or `run.resume=restart`.\n"
    )
    other = Run(tmp_path, shortened=run.shortened, settings={"train.optimizer.lr": 0.001}, silence_s=60).start()
    assert other.finish() == 2
    assert "with other keys (train.optimizer.lr: 0.0002 -> 0.001). Set another `run.name`" in other.text()
    assert {file: file.stat().st_mtime_ns for file in run.path.rglob("*")} == before


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_laptop_run_learns_from_the_page_s_function(tmp_path: Path) -> None:
    """The first function of the page, and the command below it, after a quarter of the steps."""
    text = REWARDS.read_text()
    function, command = re.search(r"```python\n(.*?)```\n\n    slime ([^\n]*)\n", text, re.DOTALL).groups()
    assert function.startswith("def score(response, label):")
    choices = dict(word.lstrip("+").split("=", 1) for word in shlex.split(command))
    path, _, name = choices["reward.path"].partition(":")
    assert (choices.pop("model"), choices.pop("cluster"), name) == ("glm4-tiny", "local", "score")
    (tmp_path / path).write_text(function)
    run = Run(tmp_path, settings=choices, shortened={"run.num_steps": 10}, forked=True).start().succeed()
    held_out = [row[HELD_OUT] for row in run.rows("rl") if HELD_OUT in row]
    assert held_out[-1] > 0.85
    assert held_out[-1] - held_out[0] >= 0.35
