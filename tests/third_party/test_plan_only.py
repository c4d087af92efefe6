"""A plan needs a few small packages; what needs more says which extra brings it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import slime
from tests.third_party.conftest import HERE_INSTALLED, ours

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RUN = ("+model=glm5.2", "+cluster=h100x256")
EXTRA = "Run: pip install 'slime-rl[gpu]'."


def test_glm_5_2_is_planned_without_the_training_stack(planning: Any) -> None:
    for module in ("torch", "ray", "sglang", "megatron.core", "triton", "transformers", "numpy"):
        assert planning.run("-c", f"import {module}").returncode, f"{module} is there"
    plan = planning.slime("plan", *RUN)
    assert plan.returncode == 0, plan.stderr
    assert "256" in plan.stdout
    assert "Traceback" not in plan.stderr
    [lacks] = [line for line in plan.stderr.splitlines() if "not installed" in line]
    assert lacks.startswith("slime: before it can run: megatron-core, sglang, aiohttp and ")
    assert EXTRA in lacks


def test_waiting_is_foretold_only_with_numpy(planning: Any, tmp_path: Path) -> None:
    """Nothing else of the plan depends on it; of what a run lacks there is one package less."""
    for entry in ("numpy", "numpy.libs"):
        if (HERE_INSTALLED / entry).exists():
            (tmp_path / entry).symlink_to(HERE_INSTALLED / entry)
    waits, words = "of a step's passes, on the way of ", ("plan", *RUN, "--all")
    without, told = planning.slime(*words), replace(planning, path=(tmp_path,)).slime(*words)
    assert (without.returncode, told.returncode) == (0, 0), told.stderr
    assert waits not in without.stdout
    assert waits in told.stdout


def test_the_folder_of_wheels_alone_brings_every_part_of_a_plan(planning: Any) -> None:
    """What `pip install --no-index --find-links dist` takes of this repository: nothing of a checkout."""
    listed = "from importlib.metadata import distributions as all; print(*(f'{d.name}={d.version}' for d in all()))"
    found = dict(word.split("=") for word in planning.run("-c", listed).stdout.split())
    wanted = ours("slime-rl[plan]", "slime-plugin-glm5")
    assert {name: found.get(name) for name in wanted} == dict.fromkeys(wanted, slime.__version__)
    where = planning.run("-c", "import slime, slime_tools; print(slime.__file__, slime_tools.__file__)").stdout.split()
    assert [path for path in where if not path.startswith(str(planning.folder))] == []


@pytest.mark.parametrize("words", [("plan", *RUN, "--json"), ("plugins",), ("--help",), ("completion", "bash")])
def test_so_do_the_other_quick_verbs(planning: Any, words: tuple[str, ...]) -> None:
    done = planning.slime(*words)
    assert done.returncode == 0, done.stderr


def test_layouts_are_proposed_without_the_training_stack(planning: Any) -> None:
    done = planning.slime("plan", *RUN, "--fit")
    assert done.returncode == 0, done.stderr
    assert re.search(r"the fastest of \d+ layouts, by estimate for h100\n", done.stdout), done.stdout


def test_a_verb_that_needs_more_says_what_brings_it(planning: Any, tmp_path: Path) -> None:
    done = planning.slime("convert", "random", "pkg://slime_plugin_glm5/assets/glm5-tiny", tmp_path / "random")
    assert (done.returncode, done.stdout) == (2, "")
    what = "slime: this needs megatron-core-portable, which is not installed. "
    assert done.stderr.startswith(what + EXTRA), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_what_no_wheel_brought_is_named_with_the_one_that_does(planning: Any) -> None:
    """What README shows: an algorithm, a program, a task, a model."""
    for words, brings in (
        (("algo=gspo",), "slime-algorithms"),
        (("algo.advantage=gae",), "slime-algorithms"),
        (("rollout.program.name=tools",), "slime-agents"),
        (("task=sums",), "slime-agents"),
        (("+model=qwen3-4b",), "slime-plugin-qwen3"),
    ):
        given = words if "+model" in words[0] else (RUN[0], *words)
        refused = planning.slime("plan", *given, RUN[1])
        assert refused.returncode == 2, words
        assert f"Run: pip install {brings}. In a checkout: pip install " in refused.stderr, refused.stderr
