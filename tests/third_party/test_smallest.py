"""The laptop run takes core, what runs it on a CPU, its model, and what that asks for; nothing else from here."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.running import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TYPED = ("slime-rl[cpu]", "slime-plugin-glm4")
"""What stands behind `pip install` on a machine without a GPU."""


def ours(*requirements: str) -> set[str]:
    """The distributions of this repository that pip installs for these requirements."""
    first_party = {"slime-rl", "sglang-torch-cpu", "megatron-core-portable", "guarded-workers", "stack-dumps"}
    first_party |= {"vocabulary-logprobs", "weight-buckets"}
    wanted, seen = [Requirement(line) for line in requirements], set[str]()
    found = set[str]()
    while wanted:
        need = wanted.pop()
        if str(need) in seen or not (need.name in first_party or need.name.startswith("slime-plugin-")):
            continue
        seen.add(str(need))
        found.add(need.name)
        for line in map(Requirement, metadata.requires(need.name) or ()):
            if line.marker is None or any(line.marker.evaluate({"extra": extra}) for extra in ("", *need.extras)):
                wanted.append(line)
    return found


def test_pip_brings_them_for_two_names(smallest: Any) -> None:
    listed = "import sys; from importlib.metadata import distributions as found; "
    listed += "print(*(one.name for one in found(path=[path for path in sys.path if 'borrowed' not in path])))"
    installed = set(smallest.run("-c", listed).stdout.split())
    assert installed == ours(*TYPED)
    assert len(installed) == 29


def test_they_plan_train_and_resume_the_laptop_run(smallest: Any, tmp_path: Path) -> None:
    plan = smallest.slime("plan", "+model=glm4-tiny", "+cluster=local")
    assert plan.returncode == 0, plan.stderr
    assert "installed" not in plan.stderr
    run = Run(tmp_path, python=smallest.python).start()
    run.until(lambda: run.has_step("rl", 3))
    run.kill()
    assert "ready: continues after rl" in run.start().succeed().text()
    assert [step for stage, step, _ in run.losses() if stage == "rl"][-1] == 4
