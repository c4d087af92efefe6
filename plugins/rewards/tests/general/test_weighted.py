"""Reward `sum`: several rewards with weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.compose.compose import compose, examine
from slime.errors import SlimeError
from slime.types import Verdict
from slime_rewards.general.weighted import SumReward
from slime_testing.plugins import GroupCase, RewardCase, check_reward, sample

RUN = ["+model=glm4-tiny", "+cluster=local"]
FILE = """
from slime.types import Verdict

def short(response, most=10):
    return max(0.0, 1 - len(response) / most)

def first(responses):
    return [float(number == 0) for number in range(len(responses))]

def breaks(response):
    raise ValueError("no such row")

def unclear(response):
    return Verdict.invalid("empty") if not response else 1.0
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my.py"
    path.write_text(FILE)
    return path


def test_the_sum_is_weighted_and_each_part_is_told(file: Path) -> None:
    """f1 of "red blue" and "red" by hand: precision 1/2, recall 1, so 2/3."""
    parts = {"f1": 3.0, "my.py:short": -0.5}
    expected = Verdict.of(3 * 2 / 3 - 0.5 * 0.2, f1=2 / 3, f1_exact=0.0, short=0.2)
    check_reward("sum", [RewardCase("red blue", "red", expected)], {"parts": parts})
    long = {"words": {"name": "f1"}, "brief": {"path": "my.py:short", "arguments": {"most": 4}, "weight": 0.5}}
    expected = Verdict.of(1 + 0.5 * 0.25, words=1.0, words_exact=1.0, brief=0.25)
    check_reward("sum", [RewardCase("red", "red", expected)], {"parts": long})


def test_a_part_called_as_the_inner_one_of_another_counts_for_itself(file: Path) -> None:
    """f1 of "red blue" and "red" is 2/3 and has a part `exact` of 0; the part of 0.2 bears the same name."""
    own = {"path": "my.py:short", "weight": 0.5}
    for parts in ({"f1_exact": own, "f1": 3.0}, {"f1": 3.0, "f1_exact": own}):
        expected = Verdict.of(3 * 2 / 3 + 0.5 * 0.2, f1=2 / 3, f1_exact=0.2)
        check_reward("sum", [RewardCase("red blue", "red", expected)], {"parts": parts})


def test_a_part_may_judge_groups(file: Path) -> None:
    expected = [Verdict.of(1.8, short=0.8, first=1.0), Verdict.of(0.9, short=0.9, first=0.0)]
    check_reward("sum", [GroupCase(["ab", "c"], "", expected)], {"parts": {"my.py:short": 1, "my.py:first": 1}})


def test_a_part_without_a_value_leaves_none(file: Path) -> None:
    """Never a 0, and no smaller sum."""
    parts = {"my.py:short": 1.0, "my.py:unclear": 1.0}
    assert SumReward(parts).score(sample("")) == Verdict.invalid("part 'unclear': empty")
    assert SumReward(parts).score(sample("a")).value == pytest.approx(1.9)
    raised = SumReward({"my.py:short": 1.0, "my.py:breaks": 1.0}).score(sample(""))
    assert raised.reason.startswith("part 'breaks': ValueError: no such row (my.py:11 in breaks")


def test_parts_are_typed_in_each_form(file: Path) -> None:
    keys = ["reward.parts={f1: 1.0, my.py:short: 0.2}"]
    written = compose([*RUN, *keys]).reward
    assert written.name == "sum"
    sha256 = written.options["parts"]["short"].pop("sha256")
    assert written.options["parts"] == {
        "f1": {"name": "f1", "weight": 1.0},
        "short": {"path": "my.py:short", "weight": 0.2},
    }
    keys = ["reward.parts.f1=1", "reward.parts.short.path=my.py:short", "reward.parts.short.weight=0.2"]
    assert compose([*RUN, *keys]).reward.options["parts"]["short"]["sha256"] == sha256
    changed = [*keys, "reward.parts.short.sha256=abc"]
    assert "my.py was changed" in examine([*RUN, *changed]).problems[0].what


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["reward.parts.mth=1"], "reward.parts.mth: no reward named 'mth' is installed. Did you mean 'math'?"),
        (["reward.parts.f1=much"], "reward.parts.f1: must be a weight, which is a number, got 'much'. Write"),
        (["reward.parts.f1=true"], "must be a weight, which is a number, got True"),
        (["reward.parts.f1.weigth=2"], "reward.parts.f1.weigth: a part has no such key. Did you mean 'weight'?"),
        (["reward.parts={my.py:shor: 1}"], "reward.parts.shor.path: there is no function 'shor' in"),
        (
            ["reward.parts.math.options.answr=boxed"],
            "reward.parts.math.options.answr: reward 'math' has no such option",
        ),
        (["reward.parts.x.path=my.py:short", "reward.parts.x.arguments.mst=1"], "takes no 'mst'. Did you mean 'most'?"),
        (["reward.parts=f1"], "reward.options.parts: Cannot assign str to Dict[str, Any]. It takes dictionary."),
        (["reward=math", "reward.parts.f1=1"], "reward=math takes no parts. Leave out reward=math, or reward.parts."),
        (["reward.part.f1=1"], "there is no key 'reward.part.f1'"),
    ],
)
def test_a_wrong_part_is_one_line(file: Path, keys: list[str], said: str) -> None:
    with pytest.raises(SlimeError) as refused:
        compose([*RUN, *keys])
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
