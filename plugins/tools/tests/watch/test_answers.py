"""What the page shows of samples."""

from plugins.tools.tests.watch.conftest import lines, sample
from slime_tools.watch import answers


def cards(tmp_path, name, samples):
    (tmp_path / f"{name}.jsonl").write_text(lines(samples))
    return answers.shown([tmp_path / f"{name}.jsonl"])["cards"]


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


def found(tmp_path, *names, **wanted):
    told = answers.shown([tmp_path / f"{name}.jsonl" for name in names], answers.Wanted(**wanted))
    return [(card["name"], answer["turns"][0]["text"]) for card in told["cards"] for answer in card["answers"]]


def test_a_search_finds_texts_and_rewards_in_the_newest_files_first(tmp_path):
    cards(tmp_path, "step-000001", [sample("a", 1.0, "It is Two"), sample("b", 0.5, "three", asked="2+1=")])
    cards(
        tmp_path, "step-000002", [sample("a", 0.0, "it is two?"), sample("c", None, "two"), sample("d", 0.75, "four")]
    )
    both = ("step-000002", "step-000001")
    assert found(tmp_path, *both, text="IT IS") == [("step-000002", "it is two?"), ("step-000001", "It is Two")]
    assert found(tmp_path, "step-000001", text="2+1") == [("step-000001", "three")]
    assert found(tmp_path, *both, least=0.5, most=0.75) == [("step-000002", "four"), ("step-000001", "three")]
    assert found(tmp_path, *both, text="two", least=0.0) == [
        ("step-000002", "it is two?"),
        ("step-000001", "It is Two"),
    ]
    assert found(tmp_path, *both, text="nothing has this") == []
    many = [sample(str(number), 0.0, "x") for number in range(2 * answers.NUM_FOUND)]
    cards(tmp_path, "step-000003", many)
    assert len(found(tmp_path, "step-000003", *both, text="x")) == answers.NUM_FOUND


def test_a_prompt_is_found_in_another_step_by_what_is_asked(tmp_path):
    cards(tmp_path, "step-000001", [sample("0/7", 0.0, "before"), sample("0/8", 0.0, "other", asked="other")])
    cards(tmp_path, "step-000009", [sample("1/7", 1.0, "after"), sample("1/9", 0.0, "another", asked="another")])
    paths = [tmp_path / f"step-{step:06d}.jsonl" for step in (1, 9)]
    (card,) = answers.same_prompt(paths[0], "0/7", paths[1])["cards"]
    assert (card["prompt"], card["answers"][0]["turns"][0]["text"]) == ("1/7", "after")
    assert answers.same_prompt(paths[0], "0/8", paths[1])["cards"] == []
