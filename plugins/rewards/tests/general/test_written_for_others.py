"""Functions that were written for verl, TRL and THUDM/slime, and classes of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.errors import SlimeError
from slime.types import Prompt, Sample, Verdict
from slime_rewards.general.function import FunctionReward
from slime_testing.plugins import GroupCase, RewardCase, check_reward, sample

THEIRS = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    right = solution_str.endswith(ground_truth)
    return {"score": float(right), "length": len(solution_str), "level": (extra_info or {}).get("level", 0)}

def with_words(solution_str, ground_truth, data_source, wrong=0.0, **kwargs):
    return 1.0 if data_source == "sums" and ground_truth in solution_str else wrong

def accuracy(completions, answer, **kwargs):
    assert {*kwargs} == {"level"}, kwargs
    return [float(one[0]["content"].endswith(right)) for one, right in zip(completions, answer, strict=True)]

def texts(prompts, completions, level):
    return [len(one) * number if prompt == "2+3=" else None for prompt, one, number in zip(prompts, completions, level)]

def columns(completions, lvel):
    return [1.0] * len(completions)

async def reward_func(args, sample, **kwargs):
    return args.paid * float(sample.response.endswith(sample.label) and sample.metadata["level"] == 2)

async def group_func(args, samples, **kwargs):
    return [sample.index for sample in samples]

class Graded:
    def __init__(self, paid=1.0):
        self.paid = paid

    def score(self, sample):
        from slime.types import Verdict
        return Verdict.of(self.paid * (sample.response == sample.prompt.label))
"""


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    path = tmp_path / "theirs.py"
    path.write_text(THEIRS)
    return path


def test_functions_for_verl_are_rewards(theirs: Path) -> None:
    row = {"data_source": "sums", "extra_info": {"level": 2}}
    cases = [RewardCase("so 5", "5", Verdict.of(1.0, length=4.0, level=2.0), row)]
    cases.append(RewardCase("6", "5", Verdict.of(0.0, length=1.0, level=0.0)))
    check_reward("function", cases, {"path": f"{theirs}:compute_score"})
    given = {"path": f"{theirs}:with_words", "arguments": {"wrong": -1.0}}
    check_reward("function", [RewardCase("5", "5", 1.0, row), RewardCase("5", "5", -1.0)], given)
    assert FunctionReward.known_as({"path": f"{theirs}:compute_score", "arguments": {}}).startswith(
        "verl: solution_str is the response, ground_truth is the"
    )


def test_functions_for_trl_judge_groups_and_get_columns(theirs: Path) -> None:
    cases = [GroupCase(["so 5", "6"], "5", [1.0, 0.0], {"level": 2})]
    check_reward("function", cases, {"path": f"{theirs}:accuracy"})
    of_text = Prompt("0/0", ({"role": "user", "content": "2+3="},), (), "5", {"level": 2}, is_text=True)
    judged = FunctionReward(f"{theirs}:texts").score_group([Sample(of_text, 0, response="five")])
    assert judged == [Verdict.of(8.0)]
    [unjudged] = FunctionReward(f"{theirs}:texts").score_group([sample("5", "5", {"level": 2})])
    assert unjudged == Verdict.invalid(f"{theirs}:texts returned None: it does not judge this response")
    said = f"{theirs}:columns takes 'lvel', and row 0/0 has no such column. Did you mean 'level'?"
    wrong = [GroupCase(["5"], "5", [Verdict.error(said)], {"level": 2})]
    check_reward("function", wrong, {"path": f"{theirs}:columns"})
    assert (
        FunctionReward.known_as({"path": f"{theirs}:texts", "arguments": {}})
        == "TRL: completions and prompts of a group, and columns"
    )


def test_functions_for_thudm_slime_and_classes_are_rewards(theirs: Path) -> None:
    given = {"path": f"{theirs}:reward_func", "arguments": {"paid": 0.5}}
    check_reward(
        "function", [RewardCase("so 5", "5", 0.5, {"level": 2}), RewardCase("5", "5", 0.0, {"level": 1})], given
    )
    check_reward("function", [GroupCase(["a", "b"], None, [0.0, 1.0])], {"path": f"{theirs}:group_func"})
    check_reward("function", [RewardCase("5", "5", 0.5)], {"path": f"{theirs}:Graded", "arguments": {"paid": 0.5}})
    assert (
        FunctionReward.known_as({"path": f"{theirs}:reward_func", "arguments": {"paid": 0.5}})
        == "THUDM/slime: args are reward.options.arguments"
    )
    assert FunctionReward.known_as({"path": f"{theirs}:Graded", "arguments": {}}) == ""


@pytest.mark.parametrize(
    ("parameters", "mapping"),
    [
        ("prompt, completion", "Call prompt messages, completion response. Or set"),
        ("response, solution", "Call it label. Or set"),
    ],
)
def test_other_names_get_the_mapping_in_one_line(tmp_path: Path, parameters: str, mapping: str) -> None:
    path = tmp_path / "theirs.py"
    path.write_text(f"def score({parameters}):\n    return 1.0\n")
    with pytest.raises(SlimeError) as refused:
        FunctionReward(f"{path}:score")
    assert mapping in str(refused.value)
    assert "\n" not in str(refused.value)
