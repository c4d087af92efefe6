"""Estimators that are functions or classes of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime import plugins
from slime.config.schema import AlgoConfig
from slime.errors import SlimeError
from slime.functions.estimators import own_estimator
from slime.sampling.guarded import GuardedEstimator
from slime_testing.estimators import LEARNT, check_estimator, step_of

FILE = """
from dataclasses import dataclass
import statistics

def advantages(rewards):
    mean = statistics.fmean(rewards)
    return [reward - mean for reward in rewards]

def by_token(rewards, group):
    import numpy
    return [numpy.full(attempt.num_loss_tokens, attempt.reward - max(rewards)) for attempt in group]

@dataclass
class Scaled:
    scale: float = 1.0
    min_samples = 1

    def advantages(self, groups):
        return [[self.scale * attempt.reward for attempt in group] for group in groups]

def short(rewards):
    return rewards[1:]

def words(rewards):
    return ["much" for _ in rewards]

def infinite(rewards):
    return [float("inf")] * len(rewards)

def breaks(rewards):
    return [reward / 0 for reward in rewards]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my.py"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("name", ["advantages", "by_token", "Scaled"])
def test_a_function_makes_advantages(file: Path, name: str) -> None:
    check_estimator("function", options={"path": f"{file}:{name}"})


def test_advantages_are_those_of_the_function(file: Path) -> None:
    [group, *_] = own_estimator(path=f"{file}:advantages").advantages(step_of([[(1.0, 3), (0.0, 5)]]))
    assert group == [0.5, -0.5]
    assert own_estimator(path=f"{file}:advantages", min_samples=4).min_samples == 4


def test_what_is_no_advantage_is_told(file: Path) -> None:
    for name, said in {
        "short": "returned .* not 4 advantages, one for each reward",
        "words": "returned .'much', 'much', 'much', 'much'., not 4 advantages",
        "breaks": r"raised ZeroDivisionError: .* \(my.py:31\)",
        "infinite": "^estimator .*my.py:infinite: gave inf for a sample of 3 loss tokens",
    }.items():
        algo = AlgoConfig(advantage="function", advantage_options={"path": f"{file}:{name}"})
        guarded = GuardedEstimator(plugins.load().estimators, algo, 10.0)
        with pytest.raises(SlimeError, match=said):
            guarded.advantages(step_of(LEARNT))
