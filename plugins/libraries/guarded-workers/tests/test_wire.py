"""What the driver takes from a worker: answers, and nothing else."""

from __future__ import annotations

import json
import pickle
import struct
from typing import Any

import pytest

from guarded_workers import wire

NUMBER = 2**62 - 1


def body(**changes: Any) -> bytes:
    whole = {"number": NUMBER, "value": 0.5, "fault": "", "error": None, "question": None, "last": False}
    return json.dumps(whole | changes).encode()


@pytest.mark.parametrize(
    "answer",
    [
        wire.Answer(NUMBER, {"value": 0.1 + 0.2, "parts": {"format": 1 / 3}}),
        wire.Answer(NUMBER, "row 3: \u00e9", last=True),
        wire.Answer(NUMBER, ["turn", {"a": 1}], question=7),
        wire.Answer(NUMBER, fault="it raised"),
        wire.Answer(wire.START),
    ],
)
def test_an_answer_comes_back_as_it_was(answer: wire.Answer) -> None:
    data = bytearray(wire.encode(answer))
    for end in range(len(data)):
        assert wire.answer_body(data[:end]) is None
    whole = wire.answer_body(data)
    assert whole is not None
    assert wire.decode(whole, answer.number) == answer


def test_an_error_of_the_start_comes_back_with_its_three_parts() -> None:
    sent = wire.encode(wire.Answer(wire.START, error=wire.StartError("gone", where="here", todo="Look.")))
    error = wire.decode(wire.answer_body(bytearray(sent)) or b"", wire.START).error
    assert error is not None
    assert (error.what, error.where, error.todo, str(error)) == ("gone", "here", "Look.", "here: gone. Look.")


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b'"value"',
        b"7",
        b"[" * 100_000,
        pickle.dumps(1.0),
        body(number=NUMBER - 1),
        body(number=None),
        body(fault=5),
        body(question="1"),
        body(question=True),
        body(error=["what"]),
        body(error=["", "", ""]),
        body(error="ab"),
        b'{"number": ' + b"9" * 5000 + b"}",
        json.dumps({"number": NUMBER}).encode(),
    ],
)
def test_anything_else_is_no_answer(wrong: bytes) -> None:
    with pytest.raises(wire.BrokenWireError):
        wire.decode(wrong, NUMBER)


def test_a_long_answer_is_refused_by_its_length_alone() -> None:
    with pytest.raises(wire.BrokenWireError, match="4294967295 bytes"):
        wire.answer_body(bytearray(struct.pack("!I", 2**32 - 1)))


def test_answers_are_taken_one_by_one() -> None:
    one, two = (wire.encode(wire.Answer(NUMBER, value)) for value in (1, 2))
    data = bytearray(one + two[:-1])
    assert wire.decode(wire.answer_body(data) or b"", NUMBER).value == 1
    assert wire.answer_body(data) is None
    data += two[-1:]
    assert wire.decode(wire.answer_body(data) or b"", NUMBER).value == 2
    assert not data
