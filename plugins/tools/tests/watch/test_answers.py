"""What the page shows of samples."""

from plugins.tools.tests.watch.conftest import lines, sample
from slime_tools.watch import answers


def cards(tmp_path, name, samples):
    (tmp_path / f"{name}.jsonl").write_text(lines(samples))
    return answers.shown(tmp_path / f"{name}.jsonl")["cards"]


def said(found):
    return [(answer["heading"], answer["turns"][-1]["text"]) for card in found for answer in card["answers"]]


def test_of_a_step_the_best_and_the_worst_answer_to_a_prompt(tmp_path):
    samples = [sample("equal", 1.0, "alike"), sample("equal", 1.0, "alike too"), sample("failed", None, "broken")]
    samples += [sample("differs", value, f"says {value}") for value in (0.5, 0.0, 1.0)]
    found = cards(tmp_path, "step-000003", samples)
    assert [card["prompt"] for card in found] == ["differs", "equal", "failed"]
    assert said(found[:1]) == [("best", "says 1.0"), ("worst", "says 0.0")]
    assert said(found[2:]) == [("best", "broken")]


def test_of_an_evaluation_the_best_and_as_worst_only_what_is_below_the_mean(tmp_path):
    samples = [sample(str(number), float(reward), f"says {number}") for number, reward in enumerate([0, 4, 1, 3])]
    samples += [sample("1", 3.9, "same prompt"), sample("0", 0.5, "same prompt"), sample("9", None, "not judged")]
    found = said(cards(tmp_path, "eval-000003", samples))
    assert found == [
        ("best", "says 1"),
        ("best", "says 3"),
        ("best", "says 2"),
        ("worst", "says 0"),
        ("worst", "says 2"),
    ]
    right = [sample(str(number), 1.0, f"says {number}") for number in range(5)]
    assert {heading for heading, _ in said(cards(tmp_path, "eval-000004", right))} == {"best"}


def test_an_answer_has_label_parts_and_why_there_is_no_reward(tmp_path):
    failed = sample("a", None, "", verdict="error", reason="boom")
    (card,) = cards(tmp_path, "step-000001", [sample("a", 0.75, "2", label=[8, 5], parts={"digits": 0.5}), failed])
    best, worst = card["answers"]
    assert (card["label"], best["parts"], best["num_tokens"], best["finish"]) == (
        "[8, 5]",
        {"digits": 0.5},
        3,
        "completed",
    )
    assert (worst["verdict"], worst["reason"]) == ("error", "boom")


def test_what_was_said_in_several_turns_is_shown_with_the_calls_of_tools(tmp_path):
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    turns = [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "2"}]
    turns += [{"role": "assistant", "content": "It is 2."}]
    (card,) = cards(tmp_path, "step-000001", [sample("a", 1.0, "It is 2.", turns=turns)])
    first, second, third = card["answers"][0]["turns"]
    assert (first["role"], first["text"], len(first["calls"])) == ("assistant", "", 1)
    assert '"name": "add"' in first["calls"][0]
    assert (second["role"], second["text"]) == ("tool", "2")
    assert third == {"role": "assistant", "text": "It is 2.", "calls": []}


def test_a_long_text_keeps_its_begin_and_its_end(tmp_path):
    (card,) = cards(tmp_path, "step-000001", [sample("a", 1.0, "begin" + "x" * 10**5 + "end")])
    text = card["answers"][0]["turns"][0]["text"]
    assert text.startswith("begin")
    assert text.endswith("end")
    assert len(text) < answers.MAX_CHARACTERS + 10
