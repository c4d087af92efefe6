"""The laptop run takes core, what runs it on a CPU, its model, and what that asks for; nothing else from here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.running import Run
from tests.third_party.conftest import ours

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TYPED = ("slime-rl[cpu]", "slime-plugin-glm4")
"""What stands behind `pip install` on a machine without a GPU."""


def test_pip_brings_them_for_two_names(smallest: Any) -> None:
    listed = "import sys; from importlib.metadata import distributions as found; "
    listed += "print(*(one.name for one in found(path=[path for path in sys.path if 'borrowed' not in path])))"
    installed = set(smallest.run("-c", listed).stdout.split())
    assert installed == ours(*TYPED).keys()
    assert len(installed) == 18


def test_they_plan_train_and_resume_the_laptop_run(smallest: Any, tmp_path: Path) -> None:
    plan = smallest.slime("plan", "+model=glm4-tiny", "+cluster=local")
    assert plan.returncode == 0, plan.stderr
    assert "installed" not in plan.stderr
    run = Run(tmp_path, python=smallest.python).start()
    run.until(lambda: run.has_step("rl", 3))
    run.kill()
    assert "ready: continues after rl" in run.start().succeed().text()
    assert [step for stage, step, _ in run.losses() if stage == "rl"][-1] == 4
