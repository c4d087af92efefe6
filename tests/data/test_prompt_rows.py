"""Rows of prompts: what is refused without a tokenizer, by file and row."""

import json

import pytest

from slime.config.schema import DataConfig
from slime.data.prompt_rows import asked, check_prompts, prompt_messages
from slime.data.rows import first_rows, read_rows
from slime.errors import SlimeError

GOOD = [{"prompt": [{"role": "user", "content": f"{n}+{n}="}], "label": str(2 * n)} for n in range(1, 8)]


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def check(path, data):
    file = read_rows(path)
    check_prompts(file.rows, data)
    return file


def one(**changes):
    """A good row, then the same with changes (None in `drop` leaves a key out)."""
    row = {**GOOD[0], **changes}
    return jsonl([GOOD[1], {key: value for key, value in row.items() if value is not ...}])


BAD_ROWS = {
    "empty file": ("", r"rows\.jsonl: is empty"),
    "only blank lines": ("\n \n", "the file has no rows"),
    "torn last line": (
        jsonl(GOOD[:2]) + '{"prompt": "1+',
        r"line 3: not valid JSON: .* column \d+\. The last line seems",
    ),
    "torn inner line": ('{"prompt": \n' + jsonl(GOOD), r"line 1: not valid JSON: .*\. Mend or delete the line"),
    "not UTF-8": (b'{"prompt": "\xff"}\n', "line 1: not UTF-8 text at byte 13"),
    "not an object": (jsonl(GOOD[:1]) + "[1]\n", "line 2: a row is a JSON object, this one is a list"),
    "missing prompt key": (jsonl([{"promt": "1"}]), "line 1: the row has no key 'prompt'. Did you mean 'promt'"),
    "prompt null": (one(prompt=None), "line 2: 'prompt' is null, not text or a list of messages"),
    "prompt a number": (one(prompt=3), "line 2: 'prompt' is a number"),
    "prompt empty text": (one(prompt="  "), "line 2: 'prompt' message 1 has an empty content"),
    "prompt empty list": (one(prompt=[]), "line 2: 'prompt' holds no message"),
    "message not an object": (one(prompt=["1+1="]), "line 2: 'prompt' message 1 is text"),
    "message without role": (one(prompt=[{"content": "1"}]), "line 2: 'prompt' message 1 has no role"),
    "message without content": (one(prompt=[{"role": "user"}]), "line 2: 'prompt' message 1 has no content"),
    "content a list": (one(prompt=[{"role": "user", "content": [1]}]), "message 1 has a list as its content"),
    "other prompt key": (
        jsonl([{"question": "1", "answer": "1"}]),
        "has no key 'prompt'. Choose one of: answer, question. data.prompt_key names the column; ",
    ),
    "empty object": ("{}\n", "line 1: the row has no key 'prompt'. Mend or delete the row."),
    "messages as text, cut off": (
        one(prompt='[{"role": "user", "content": "1+'),
        "line 2: 'prompt' is text that begins as a list of messages and is none. Write a list, or put the text in",
    ),
    "messages as text, of an array": (
        one(prompt="[{'content': 'a', 'role': 'user'}\n {'content': 'b', 'role': 'user'}]"),
        "line 2: 'prompt' is text that begins as a list of messages and is none",
    ),
    "messages as text, one without a role": (
        one(prompt=json.dumps([GOOD[0]["prompt"][0], {"content": "1"}])),
        "line 2: 'prompt' message 2 has no role",
    ),
    "missing label": (
        one(label=...),
        "line 2: the row has no key 'label'. Choose one of: prompt. data.label_key names the column; null where",
    ),
    "control character": ('{"prompt": "1\t+"}\n' * 2, "line 1: not valid JSON: Invalid control character at column 14"),
    "label null": (one(label=None), r"line 2: 'label' is null\. Give every row a label"),
    "label NaN": (jsonl([{"prompt": "1", "label": float("nan")}]), r"line 1: 'label' is nan\. Give every row a label"),
    "label empty": (one(label=" "), r"line 2: 'label' is empty\. Give every row a label"),
    "a key twice": (
        jsonl(GOOD[:1]) + '{"label": "1", "prompt": "1", "label": "2"}',
        "line 2: the key 'label' stands in",
    ),
    "half a character": ('{"prompt": "\\ud83d", "label": "1"}\n', r"line 1: holds half of a character, \\ud83d"),
    "half a character in a key": ('{"prompt": "1", "\\uDC00": "1"}\n', r"line 1: holds half of a character, \\udc00"),
    "nested deeply": ('{"label": ' + "[" * 100 + "]" * 100 + "}\n", "line 1: nested more than 100 levels deep"),
    "nested too deep to read": ("[" * 100_000 + "]" * 100_000, "line 1: nested more than 100 levels deep"),
    "a number without end": ('{"label": 1' + "0" * 5000 + "}\n", r"line 1: Exceeds the limit \(4300 digits\)"),
    "an answered prompt": (
        one(prompt=[*GOOD[0]["prompt"], {"role": "assistant", "content": "2"}]),
        "ends with the assistant's turn, .*compare with it, set data.label_key=prompt.-1.content",
    ),
    "an image": (
        one(
            prompt=[{"role": "user", "content": [{"type": "text", "text": "1"}, {"type": "image_url", "image_url": 1}]}]
        ),
        "line 2: 'prompt' message 1 has a part 2 of the type 'image_url' that is no text. Models are given text alone",
    ),
    "label of another kind": (one(label=["2"]), r"line 2: 'label' is a list, but text in .*rows\.jsonl line 1"),
    "label a number among texts": (one(label=2), "line 2: 'label' is a number, but text in"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows_are_named(name, write):
    content, message = BAD_ROWS[name]
    with pytest.raises(SlimeError, match=message) as caught:
        check(write(content), DataConfig())
    assert "\n" not in str(caught.value)


TURNS = [{"role": "system", "content": "be [short]"}, {"role": "user", "content": 'say "{}"'}]


@pytest.mark.parametrize(
    "text", [json.dumps(TURNS), json.dumps(TURNS, indent=1), repr(TURNS), f" {json.dumps(TURNS)}\n"]
)
def test_messages_that_a_table_holds_as_text_are_read(text, write):
    file = check(write(jsonl([{"prompt": text, "label": "2"}])), DataConfig())
    assert list(prompt_messages(file.rows[0], "prompt")) == TURNS


@pytest.mark.parametrize(
    "text",
    [
        '[{"a": 1}, {"b": 2}]',
        '{"role": "user", "content": "1+1="}',
        '["role", "content"]',
        '[{"role": "user"}]',
        f"Mend this JSON: {json.dumps(TURNS)[:-3]}",
        f"{json.dumps(TURNS)}\nHow many messages are these?",
        "[1, 2",
        "[x] [{",
    ],
)
def test_a_prompt_that_is_about_json_stays_text(text, write):
    file = check(write(jsonl([{"prompt": text, "label": "2"}])), DataConfig())
    assert prompt_messages(file.rows[0], "prompt") == ({"role": "user", "content": text},)


def test_a_whole_character_in_two_escapes_is_text(write):
    file = check(write('{"prompt": "\\ud83d\\ude00", "label": "1"}\n'), DataConfig())
    assert file.rows[0]["prompt"] == "\U0001f600"


def test_brackets_in_a_text_are_no_nesting(write):
    check(write(jsonl([{"prompt": "[{(" * 1000, "label": "1"}])), DataConfig())


def test_a_call_of_a_tool_needs_no_content(write):
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]}
    turns = [*GOOD[0]["prompt"], call, {"role": "tool", "content": "2"}]
    check(write(jsonl([{"prompt": turns, "label": "2"}])), DataConfig())


def test_another_suffix_is_refused(write):
    with pytest.raises(SlimeError, match=r"rows\.xlsx: not a file of rows"):
        check(write("a,b\n", "rows.xlsx"), DataConfig())


def test_a_damaged_parquet_file_is_refused(write):
    with pytest.raises(SlimeError, match=r"rows\.parquet: not a readable parquet file"):
        check(write("PAR1 and no more", "rows.parquet"), DataConfig())


def test_first_rows_are_read_alone(write):
    path = write(jsonl(GOOD[:3]) + "torn")
    assert [row.number for row in first_rows(path, 2)] == [1, 2]
    with pytest.raises(SlimeError, match="line 4"):
        first_rows(path, 4)
    with pytest.raises(SlimeError, match="not a file of rows"):
        first_rows(write("a,b\n", "rows.xlsx"), 2)


def test_text_in_parts_is_text(write):
    """As sets for models that see images have it; a table gives each part the fields of all."""
    parts = [{"type": "text", "text": "1+", "image": None}, {"type": "text", "text": "1=", "image": None}]
    file = check(write(jsonl([{"prompt": [{"role": "user", "content": parts}], "label": "2"}])), DataConfig())
    assert prompt_messages(file.rows[0], "prompt") == ({"role": "user", "content": "1+1="},)


ANSWERED = [*TURNS, {"role": "assistant", "content": "{}"}]
LAST_TURN = DataConfig(prompt_key="messages", label_key="messages.-1.content")


@pytest.mark.parametrize("answer", ["{}", [{"type": "text", "text": "{}"}]])
@pytest.mark.parametrize("written", [list, json.dumps])
def test_the_last_turn_is_cut_off_where_it_is_the_label(answer, written, write):
    turns = [*TURNS, {"role": "assistant", "content": answer}]
    [row] = check(write(jsonl([{"messages": written(turns)}])), LAST_TURN).rows
    assert list(asked(row, LAST_TURN)) == TURNS
    assert row[LAST_TURN.label_key] == "{}"


def test_without_an_answer_there_is_no_last_turn_to_cut(write):
    with pytest.raises(SlimeError, match="line 1: 'messages' does not end with an assistant's answer"):
        check(write(jsonl([{"messages": TURNS}])), LAST_TURN)
    with pytest.raises(SlimeError, match=r"the row has no key 'messages\.9\.content'"):
        check(write(jsonl([{"messages": TURNS}])), DataConfig(prompt_key="messages", label_key="messages.9.content"))
