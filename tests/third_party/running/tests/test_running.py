from dataclasses import replace

import pytest
from slime_running import Running

from slime_testing.estimators import PROMPT, attempt, check_estimator


def test_contract() -> None:
    check_estimator("running", options={"decay": 0.5})


def test_each_prompt_set_has_its_own_mean() -> None:
    """By hand: the first step is compared with its own mean, the next with what is left of it and half of the new."""
    other = replace(PROMPT, set="hard")
    running = Running(decay=0.5)
    assert running.advantages([[attempt(1.0, 3), attempt(0.0, 2)], [attempt(4.0, 1, prompt=other)]]) == [
        [0.5, -0.5],
        [0.0],
    ]
    assert running.advantages([[attempt(1.0, 3)]]) == [[0.5]]
    assert running.advantages([[attempt(1.0, 3)], [attempt(0.0, 1, prompt=other)]]) == [[0.25], [-4.0]]
    assert running.state_dict() == {"means": {"": pytest.approx(0.875), "hard": pytest.approx(2.0)}}
