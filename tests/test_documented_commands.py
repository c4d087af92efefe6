"""Commands of the guides that train on two cores, as the pages have them: each learns what its page says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from slime.observe.metrics import HELD_OUT
from tests.running import Run
from tests.typed import example, typed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("guide", "words", "steps", "wanted"),
    [
        ("rewards.md", "reward.path=my_file.py:score_group", 6, 0.65),
        ("tools.md", "rollout.program.path=my_agent.py:run", 4, 0.55),
    ],
)
def test_a_command_on_the_laptop_s_sums_learns(
    demonstrated: Mapping[str, Any], tmp_path: Path, guide: str, words: str, steps: int, wanted: float
) -> None:
    """A number of its steps, which are no others for being few: held-out rewards, from 0.305 on."""
    settings = typed(guide, words, tmp_path)
    shortened = {**demonstrated, "run.num_steps": steps, "eval.interval": steps}
    run = Run(tmp_path, settings=settings, shortened=shortened, forked=True).start().succeed()
    held_out = [row[HELD_OUT] for row in run.rows("rl") if HELD_OUT in row]
    assert held_out[0] < 0.4
    assert held_out[-1] > wanted


def test_the_environment_of_the_examples_is_learnt(demonstrated: Mapping[str, Any], tmp_path: Path) -> None:
    """Six of its ten steps: the model answers with numbers, and finds more digits."""
    given = {**example("environment", tmp_path), "run.num_steps": 6}
    run = Run(tmp_path, settings=given, shortened=demonstrated, forked=True).start().succeed()
    first, *_, last = (row["rollout/reward_mean"] for row in run.rows("rl") if "rollout/reward_mean" in row)
    assert first < -0.05
    assert last > first + 0.15
