"""A plan needs a few small packages; what needs more says which extra brings it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.third_party.conftest import HERE_INSTALLED

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
    plain = planning.slime("plan", *RUN)
    installed = planning.beside(tmp_path, "slime-tools")
    without = installed.slime("plan", *RUN)
    assert without.returncode == 0, without.stderr
    assert without.stdout == plain.stdout
    numpy = tmp_path / "numpy"
    numpy.mkdir()
    for entry in ("numpy", "numpy.libs"):
        if (HERE_INSTALLED / entry).exists():
            (numpy / entry).symlink_to(HERE_INSTALLED / entry)
    told = replace(installed, path=(*installed.path, numpy)).slime("plan", *RUN)
    assert told.returncode == 0, told.stderr
    assert "of a step's passes, on the way of " in told.stdout


@pytest.mark.parametrize("words", [("plan", *RUN, "--json"), ("plugins",), ("--help",), ("completion", "bash")])
def test_so_do_the_other_quick_verbs(planning: Any, words: tuple[str, ...]) -> None:
    done = planning.slime(*words)
    assert done.returncode == 0, done.stderr


def test_layouts_are_proposed_without_the_training_stack(planning: Any, tmp_path: Path) -> None:
    refused = planning.slime("plan", *RUN, "--fit")
    assert refused.returncode == 2, refused.stdout
    assert refused.stderr.startswith("slime: 'slime plan --fit' comes with slime-tools, which is not installed.")
    assert refused.stderr.count("\n") == 1, refused.stderr
    done = planning.beside(tmp_path, "slime-tools").slime("plan", *RUN, "--fit")
    assert done.returncode == 0, done.stderr
    assert "the fastest of 30 layouts" in done.stdout


def test_a_verb_that_needs_more_says_what_brings_it(planning: Any, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"stage": "rl", "step": 1, "time": 1.0, "rollout/reward_mean": 0.5}\n')
    report = planning.slime("report", tmp_path)
    config = "pkg://slime_plugin_glm5/assets/glm5-tiny"
    random = planning.beside(tmp_path / "convert", "slime-tools").slime(
        "convert", "random", config, tmp_path / "random"
    )
    brings = (
        (report, "'slime report' comes with slime-tools", "Run: pip install slime-tools."),
        (random, "this needs slime-megatron", EXTRA),
    )
    for done, what, todo in brings:
        assert done.returncode == 2, done.stdout
        assert done.stderr.startswith(f"slime: {what}, which is not installed. {todo}")
        assert done.stderr.count("\n") == 1, done.stderr
