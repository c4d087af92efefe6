"""The contract test of an estimator passes slime's own, and finds what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.errors import SlimeError
from slime_testing.estimators import check_estimator
from tests.site import Site

THIRD_PARTY = Path(__file__).parents[3] / "tests/third_party"
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


@pytest.mark.parametrize(("name", "options"), [("median", {"bound": 0.5}), ("running", {"decay": 0.5})])
def test_one_of_a_third_party_keeps_it(site: Site, name: str, options: dict[str, float]) -> None:
    """At most 45 lines, installed and chosen by name. From its wheel it is tried in tests/third_party."""
    project, module = THIRD_PARTY / name, f"slime_{name}/__init__.py"
    source = (project / module).read_text()
    assert len(source.splitlines()) <= 45
    site.add_project({"pyproject.toml": (project / "pyproject.toml").read_text(), module: source})
    check_estimator(name, options=options)


KEEPING = """
class Hidden:
    min_samples = 1

    def __init__(self, fault: str = ""):
        self.fault, self.state = fault, {"steps": 0}

    def advantages(self, groups):
        self.state["steps"] += 1
        return [[attempt.reward * self.state["steps"] for attempt in group] for group in groups]

class Half(Hidden):
    def state_dict(self):
        return self.state if self.fault == "shared" else {**self.state}

class Keeping(Half):
    def load_state_dict(self, state):
        self.state = {"steps": 0} if self.fault == "forgets" else {**state}

@hookimpl
def slime_estimators():
    return {"keeping": Keeping, "half": Half, "hidden": Hidden}
"""


@pytest.mark.parametrize(
    ("name", "fault", "told"),
    [
        ("keeping", "forgets", "gives other advantages after a checkpoint"),
        ("keeping", "shared", "changes with the next step: state_dict has to copy"),
        ("half", "", "has state_dict alone: state_dict and load_state_dict go together"),
        ("hidden", "", "gives other advantages the second time"),
    ],
)
def test_a_state_that_does_not_survive_a_checkpoint_is_found(site: Site, name: str, fault: str, told: str) -> None:
    site.add("slime-keeping", KEEPING)
    check_estimator("keeping")
    with pytest.raises(AssertionError, match=told):
        check_estimator(name, options={"fault": fault})


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
