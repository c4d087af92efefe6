"""`slime samples`, on files as a run writes them."""

import pytest

from slime.__main__ import main
from slime.events import Evaluation, Samples
from slime.segments import Segment, WeightSpan
from slime.types import Decision, Group, Prompt, Sample, Status, Verdict
from slime_observers.samples.log import SampleLog


def group(name: str, **rewards: float | None) -> Group:
    """A response for each name, with its reward."""
    prompt = Prompt(f"0/{name}", ({"role": "user", "content": f"say {name}"},), (1,), label=name)
    verdicts = [Verdict.error("boom") if value is None else Verdict.of(value) for value in rewards.values()]
    samples = [
        Sample(
            prompt,
            index,
            [Segment(prompt.tokens, [7], [-0.5], [1], [WeightSpan(3, 1)])],
            Status.COMPLETED,
            response,
            verdict,
        )
        for index, (response, verdict) in enumerate(zip(rewards, verdicts, strict=True))
    ]
    return Group(prompt, samples)


@pytest.fixture
def run(tmp_path):
    (tmp_path / "samples").mkdir()
    log = SampleLog(tmp_path / "samples", 1)
    log(Samples(1, [], [(group("old", first=0.0), Decision(True))]))
    equal, differs = group("equal", same=1.0, alike=1.0), group("differs", broken=None, poor=0.25, good=1.0, middle=0.5)
    log(Samples(12, [], [(equal, Decision(False, "zero_variance")), (differs, Decision(True))]))
    log(Evaluation(12, [group("held", out=1.0)], {}))
    return tmp_path


def test_the_newest_step_with_what_differs_most_first(run, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["samples", str(run), "--prompts", "1"]) == 0
    shown = capsys.readouterr().out
    assert "step-000012: 6 samples of 2 prompts; 1 shown" in shown
    assert "prompt 0/differs, kept" in shown
    assert "say differs" in shown
    assert "good" in shown
    assert "broken" in shown
    assert "error: boom" in shown
    assert "middle" not in shown
    assert "equal" not in shown


def test_a_step_or_an_evaluation_by_name(run, capsys) -> None:
    assert main(["samples", str(run), "1"]) == 0
    assert "prompt 0/old" in capsys.readouterr().out
    assert main(["samples", str(run), "eval-000012"]) == 0
    assert "prompt 0/held" in capsys.readouterr().out


def test_what_is_not_there_is_an_error_with_the_newest(run, tmp_path, capsys) -> None:
    assert main(["samples", str(run), "11"]) == 2
    assert "there is no 'step-000011'. The newest is 'step-000012'" in capsys.readouterr().err
    assert main(["samples", str(tmp_path / "none")]) == 2
    assert "there are no samples" in capsys.readouterr().err


def test_of_an_evaluation_the_wrong_answers_come_first(run, capsys) -> None:
    """Each prompt has one response, so that no prompt differs more than another."""
    log = SampleLog(run / "samples", 1)
    log(Evaluation(13, [group(f"p{number}", answer=float(number != 3)) for number in range(5)], {}))
    assert main(["samples", str(run), "eval-000013", "--prompts", "1"]) == 0
    assert "prompt 0/p3" in capsys.readouterr().out


def test_a_row_without_a_field_is_one_line(run, capsys) -> None:
    path = run / "samples/step-000012.jsonl"
    path.write_text(path.read_text().replace('"num_tokens"', '"num_tokers"', 1))
    assert main(["samples", str(run)]) == 2
    shown = capsys.readouterr()
    assert shown.err == f"slime: {path}:1: this line is not a sample. Repair or delete the line.\n"


def test_a_conversation_is_shown_turn_by_turn(tmp_path, capsys) -> None:
    found = group("sum", wrong=0.0, right=1.0)
    called, result = {"role": "assistant", "content": "add(1, 2)"}, {"role": "tool", "content": "3"}
    found.samples[1].turns = [called, result, {"role": "assistant", "content": "right"}]
    (tmp_path / "samples").mkdir()
    SampleLog(tmp_path / "samples", 1)(Samples(1, [], [(found, Decision(True))]))
    assert main(["samples", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert all(words in shown for words in ("assistant: add(1, 2)", "tool: 3", "assistant: right", "wrong"))
