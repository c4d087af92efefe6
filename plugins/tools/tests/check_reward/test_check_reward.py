from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from slime.__main__ import main
from slime_testing.verbs import check_verb
from slime_tools.check_reward.trial import TEMPLATES, stated, wrong

LABELS = ["34", "\\frac{1}{2}", "-7", "x+1", "12\\text{ cm}", "(1, 2)", "85", "3.5"]
FUNCTIONS = """
import time

def exact(response, label):
    return response.strip() == label

def lenient(response, label):
    return label[:1] in response

def strict(response, label):
    return response.strip() == label and label != "85"

def reads_thoughts(response, label):
    return response.split(">")[-1].strip() == label or response == f"<think>{label}</think>"

def hangs(response, label):
    while len(response) > 100000:
        time.sleep(1)
    return response == label

def best(responses, label):
    return [float(len(responses) > 1 and each == label) for each in responses]

def equal(responses, label):
    return [float(label in responses)] * len(responses)

def ends(response, label):
    raise SystemExit(3)

def breaks(response, label):
    return float(response == label) / len(response.strip())

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth), "letters": len(ground_truth)}
"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    rows = [{"prompt": "What is it?", "label": label} for label in LABELS]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    nested = [{"prompt": "What is it?", "reward_model": {"ground_truth": label}} for label in LABELS]
    (tmp_path / "nested.jsonl").write_text("".join(json.dumps(row) + "\n" for row in nested))
    (tmp_path / "rewards.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    return "rows.jsonl"


def test_contract() -> None:
    check_verb("check-reward")


@pytest.mark.parametrize("reward", ["math", "deepscaler", "dapo", "rewards.py:exact", "rewards.py:best"])
def test_rewards_that_are_fit(data: str, reward: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-reward", reward, data]) == 0, capsys.readouterr().out
    assert capsys.readouterr().out.splitlines()[-1] == "fit"


@pytest.mark.parametrize(
    ("reward", "fault"),
    [
        ("lenient", "wrong answers are paid"),
        ("equal", "wrong answers are paid"),
        ("strict", "87.5% of right answers are paid, at least 98.0% should be"),
        ("reads_thoughts", "16 hostile responses are paid"),
        ("hangs", "hostile responses end in timeout"),
        ("breaks", "hostile responses end in error"),
    ],
)
def test_rewards_that_are_not(data: str, reward: str, fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    timeout_s = 2 if reward == "hangs" else 60  # a busy machine is not to be the fault of the others
    words = ["check-reward", f"rewards.py:{reward}", data, f"reward.timeout_s={timeout_s}", "--json"]
    assert main(words) == 1
    found = json.loads(capsys.readouterr().out)
    assert any(fault in each for each in found["faults"])


def test_a_reward_that_judges_none_of_the_first_answers_is_asked_no_more(
    data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of its workers ends with the answer, and another takes a second to start."""
    assert main(["check-reward", "rewards.py:ends", data, "--template", "{label}"]) == 1
    said = capsys.readouterr().out
    assert "right answers              4: 0 paid, 4 error" in said
    assert said.count("not tried: no right answer got a value") == 2
    assert "unfit: 4 right responses end in error" in said


def test_the_label_may_be_nested_and_the_template_given(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    nested = ["nested.jsonl", "data.label_key=reward_model.ground_truth"]
    boxed = ["reward.options.answer=boxed", "--template", "So it is {label}"]
    assert main(["check-reward", "math", *nested, *boxed]) == 1
    assert "unfit: 0.0% of right answers are paid" in capsys.readouterr().out
    assert main(["check-reward", "math", *nested, "--template", "the answer is {label}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["template"], found["right"]["paid"]) == ("the answer is {label}", len(LABELS))


def test_the_form_of_a_function_and_the_parts_of_a_reward_are_told(
    data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-reward", "rewards.py:compute_score", data]) == 0
    said = capsys.readouterr().out
    assert "read as a function for verl: solution_str is the response, ground_truth is the label" in said
    assert f"    parts: letters {sum(map(len, LABELS)) / len(LABELS):.3f}\n" in said
    parts = "reward.parts={rewards.py:exact: 1.0, rewards.py:lenient: 0.25}"
    assert main(["check-reward", "sum", data, parts]) == 0
    assert "    parts: exact 1.000, lenient 1.000\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["maths", "rows.jsonl"], "no reward named 'maths' is installed. Did you mean 'math'?"),
        (["math", "row.jsonl"], "there is no 'row.jsonl'. Did you mean 'rows.jsonl'?"),
        (["math", "rows.jsonl", "reward.options.answr=boxed"], "reward 'math' has no such option"),
        (["math", "rows.jsonl", "train.lr=1"], "'train.lr=1' is no key of them"),
        (["math", "rows.jsonl", "data.label_key=labl"], "the row has no key 'labl'. Did you mean 'label'?"),
        (["math", "rows.jsonl", "data.prompt_key=promt"], "Did you mean 'prompt'? data.prompt_key names the column"),
        (["judge", "rows.jsonl", "reward.options.engines=rm"], "asks the engine group 'rm', which only a run starts"),
        (["rewards.py", "rows.jsonl"], "Write FILE.py:FUNCTION, for instance reward.path=rewards.py:score."),
        (["rewards.py:exac", "rows.jsonl"], "there is no function 'exac' in "),
    ],
)
def test_what_is_typed_wrongly_is_one_line(
    data: str, words: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-reward", *words]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert error in line


def test_wrong_answers_are_wrong() -> None:
    draw = random.Random(0)
    assert list(wrong("34", ["34", "85"], draw)) == ["35", "-34", "340", "34 or 35", "85"]
    assert list(wrong("0", ["0"], draw)) == ["1", "0 or 1"], "00 is the same"
    assert list(wrong("\\frac{1}{2}", ["\\dfrac{1}{2}"], draw)) == ["\\frac{2}{2}", "\\frac{1}{3}"]


def test_a_template_states_a_label_as_it_is() -> None:
    assert [stated(template, "\\{x\\}") for template in TEMPLATES[:2]] == ["\\{x\\}", "So it is \\boxed{\\{x\\}}."]
