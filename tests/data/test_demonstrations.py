import json
import shutil

import numpy as np
import pytest

from slime.config.schema import ControlTokens, DataConfig
from slime.data.demonstrations import DemonstrationSource, up_to_end
from slime.data.tokenize import load_tokenizer
from slime.errors import SlimeError


def turn(role, content):
    return {"role": role, "content": content}


def row(*turns):
    return json.dumps({"messages": list(turns)}) + "\n"


GOOD = "".join(row(turn("user", f"{n}+1="), turn("assistant", str(n + 1))) for n in range(5))


@pytest.fixture
def source(write, tokenizer):
    def source(content=GOOD, **data):
        return DemonstrationSource(write(content), tokenizer, seed=3, max_tokens=64, data=DataConfig(**data))

    return source


def test_loss_is_on_the_answer_and_its_end_token(source, tokenizer):
    sample = source(row(turn("user", "12+34="), turn("assistant", "46"))).take(1)[0]
    answer = sample.tokens[-sample.num_response_tokens :]
    assert tokenizer.decode(answer) == "46<|endoftext|>"
    assert tokenizer.decode(sample.tokens) == "[gMASK]<sop><|user|>\n12+34=<|assistant|>\n46<|endoftext|>"
    np.testing.assert_array_equal(sample.loss_mask, np.ones(3))
    assert not sample.columns


def test_only_the_last_answer_is_learnt(source, tokenizer):
    turns = [turn("user", "1+1="), turn("assistant", "2"), turn("user", "2+2="), turn("assistant", "4")]
    sample = source(row(*turns)).take(1)[0]
    assert tokenizer.decode(sample.tokens[-sample.num_response_tokens :]) == "4<|endoftext|>"


@pytest.mark.parametrize(
    ("template", "answer"),
    [
        ("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|endoftext|>\n{% endfor %}", "46<|endoftext|>"),
        ("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}", "46<|endoftext|>"),
    ],
    ids=["text after the end token", "no end token"],
)
def test_exactly_one_end_token_closes_the_answer(source, tokenizer, monkeypatch, template, answer):
    monkeypatch.setattr(tokenizer, "chat_template", template + "{% if add_generation_prompt %}<|assistant|>{% endif %}")
    sample = source(row(turn("user", "12+34="), turn("assistant", "46"))).take(1)[0]
    assert tokenizer.decode(sample.tokens[-sample.num_response_tokens :]) == answer


def test_a_template_that_rewrites_the_prompt_is_refused(source, tokenizer, monkeypatch):
    template = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    monkeypatch.setattr(tokenizer, "chat_template", template)
    with pytest.raises(SlimeError, match="line 1: the conversation's tokens do not begin with its prompt's tokens"):
        source()


def test_an_answer_needs_a_token_that_ends_it(write, tokenizer_folder, tmp_path):
    folder = shutil.copytree(tokenizer_folder, tmp_path / "a", ignore=lambda *_: ["tokenizer_config.json"])
    with pytest.raises(SlimeError, match=r"a: the tokenizer has no token that ends an answer\. Name it "):
        DemonstrationSource(write(GOOD), load_tokenizer(folder), seed=3, max_tokens=64, data=DataConfig())


def test_a_control_token_in_an_answer_is_refused_or_left_out(source, caplog):
    content = GOOD + row(turn("user", "1+1="), turn("assistant", "2<|endoftext|>3"))
    with pytest.raises(SlimeError, match=r"line 6: message 2 holds the control token '<\|endoftext\|>'"):
        source(content)
    assert len(source(content, control_tokens=ControlTokens.skip)) == 5
    assert "1 of 6 rows left out (with control tokens)" in caplog.text
    with pytest.raises(SlimeError, match="every row is left out"):
        source(content.splitlines()[-1], control_tokens=ControlTokens.skip)


def test_a_huge_row_is_refused_before_it_is_encoded(source, monkeypatch, tokenizer):
    monkeypatch.setattr("slime.data.demonstrations.encode", None)
    with pytest.raises(SlimeError, match=r"line 1: the demonstration has \d+ characters, more than the tokens of 64"):
        source(row(turn("user", "1"), turn("assistant", "1" * 2000)))


def test_resume_continues_where_it_stopped(source):
    first, second = source(), source()
    first.take(7)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for left, right in zip(first.take(8), second.take(8), strict=True):
        np.testing.assert_array_equal(left.tokens, right.tokens)


def test_resume_refuses_a_changed_file(source):
    state = source().state_dict()
    with pytest.raises(SlimeError, match="the file changed since the checkpoint was taken"):
        source(GOOD + GOOD).load_state_dict(state)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (row(turn("user", "1+1=")), "line 1: 'messages' does not end with an assistant's answer"),
        (row(turn("assistant", "2")), "line 1: 'messages' does not end with an assistant's answer"),
        (GOOD + row(turn("user", "1"), turn("assistant", "")), "line 6: 'messages' message 2 has an empty content"),
        ('{"message": []}\n', "line 1: the row has no key 'messages'. Did you mean 'message'"),
        (row(turn("user", "1" * 70), turn("assistant", "2")), "line 1: the demonstration has 78 tokens, more than 64"),
    ],
)
def test_bad_rows_are_named(source, content, message):
    with pytest.raises(SlimeError, match=message):
        source(content)


def answers(prompt, chosen, rejected):
    return json.dumps({"prompt": prompt, "chosen": chosen, "rejected": rejected}) + "\n"


def test_a_pair_is_one_attempt_with_the_chosen_answer_first(write, tokenizer):
    whole = [[turn("user", "12+34="), turn("assistant", answer)] for answer in ("46", "47")]
    content = answers("12+34=", "46", "47") + answers(None, *whole) + answers("12+34=", *([each[1]] for each in whole))
    source = DemonstrationSource(write(content), tokenizer, seed=3, max_tokens=64, data=DataConfig(), pairs=True)
    assert len(source) == 3
    taken = source.take(4)
    assert [sample.attempt for sample in taken] == [0, 0, 1, 1, 2, 2, 3, 3], "also where an epoch ends"
    for chosen, rejected in zip(taken[::2], taken[1::2], strict=True):
        assert tokenizer.decode(chosen.tokens).endswith("12+34=<|assistant|>\n46<|endoftext|>")
        assert tokenizer.decode(rejected.tokens).endswith("12+34=<|assistant|>\n47<|endoftext|>")
        assert set(chosen.columns["preference"]) == {1.0}
        assert set(rejected.columns["preference"]) == {-1.0}


def test_both_answers_of_a_pair_have_to_fit(write, tokenizer):
    content = answers("12+34=", "46", "4" * 14)
    with pytest.raises(SlimeError, match=r"line 1: the pair has \d+ tokens in both conversations, more than 32"):
        DemonstrationSource(write(content), tokenizer, seed=3, max_tokens=32, data=DataConfig(), pairs=True)


def test_a_limit_takes_the_first_rows(write, tokenizer):
    given = (tokenizer, 3, 64, DataConfig())
    limited = DemonstrationSource(write(GOOD), *given, limit=2).all()
    alone = DemonstrationSource(write("".join(GOOD.splitlines(keepends=True)[:2]), "two.jsonl"), *given).all()
    assert [sample.tokens.tolist() for sample in limited] == [sample.tokens.tolist() for sample in alone]


def test_an_answer_ends_with_its_last_end_token() -> None:
    """One before it is of the answer's own text (`data.control_tokens=allow`)."""
    assert up_to_end([5, 0, 6, 0, 7], 0) == [5, 0, 6, 0]
    assert up_to_end([5, 6], 0) == [5, 6, 0]
