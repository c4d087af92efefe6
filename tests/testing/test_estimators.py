"""The contract test of an estimator passes slime's own, and finds what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.errors import SlimeError
from slime_testing.estimators import check_estimator
from tests.site import Site

MEDIAN = Path(__file__).parents[1] / "third_party/median"
WRONG = """
from dataclasses import dataclass

@dataclass
class Wrong:
    fault: str = ""
    min_samples = 2

    def idle_options(self, train):
        return {"other": "without one"} if self.fault == "idle" else {}

    def advantages(self, groups):
        if self.fault == "short":
            return [[1.0] for group in groups]
        if self.fault == "long":
            return [[[attempt.reward] * 9 for attempt in group] for group in groups]
        if self.fault == "order":
            return [[float(number) for number, _ in enumerate(group)] for group in groups]
        if self.fault == "sign":
            return [[-attempt.reward for attempt in group] for group in groups]
        if self.fault == "touches":
            return [[group.append(group.pop(0)) or 0.0 for _ in [*group[1:]]] + [0.0] for group in groups]
        return [[0.0 for attempt in group] for group in groups]

@hookimpl
def slime_estimators():
    return {"wrong": Wrong}
"""


@pytest.mark.parametrize("normalize_std", [True, False])
def test_the_estimator_of_slime_keeps_the_contract(normalize_std: bool) -> None:
    check_estimator("grpo", normalize_std=normalize_std)


def test_one_of_a_third_party_keeps_it(site: Site) -> None:
    """At most 40 lines, installed and chosen by name. From its wheel it is tried in tests/third_party."""
    source = (MEDIAN / "slime_median/__init__.py").read_text()
    assert len(source.splitlines()) <= 40
    files = {"pyproject.toml": (MEDIAN / "pyproject.toml").read_text(), "slime_median/__init__.py": source}
    site.add_project(files)
    check_estimator("median", options={"bound": 0.5})


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("", "teaches nothing"),
        ("idle", "estimator/wrong calls 'other' idle, which is no option of its own"),
        ("short", r"gave \[1, 1, 1\] advantages to groups of \[4, 2, 3\]"),
        ("long", "neither one number nor 3"),
        ("order", "gives other advantages in another order"),
        ("sign", "reward 0.5 has a lower advantage than -2 in its group"),
        ("touches", "changed the groups"),
    ],
)
def test_a_wrong_one_is_found(site: Site, fault: str, told: str) -> None:
    site.add("slime-wrong", WRONG)
    with pytest.raises(AssertionError, match=told):
        check_estimator("wrong", options={"fault": fault})


def test_options_are_typed(site: Site) -> None:
    site.add("slime-wrong", WRONG)
    with pytest.raises(SlimeError, match=r"algo\.advantage_options\.fault: .*It takes"):
        check_estimator("wrong", options={"fault": [1]})
