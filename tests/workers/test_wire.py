"""What the service takes from a worker: answers, and nothing else."""

from __future__ import annotations

import json
import pickle
import struct
from typing import Any

import pytest

from slime.errors import SlimeError
from slime.types import Verdict
from slime.workers import wire
from slime.workers.verdicts import fields, verdict

NUMBER = 2**62 - 1


def body(**changes: Any) -> bytes:
    value = {"kind": "value", "value": 0.5, "reason": "", "parts": {"format": 1.0}}
    value |= {key: changes.pop(key) for key in list(changes) if key in value}
    whole = {"number": NUMBER, "value": value, "fault": "", "error": None, "question": None, "last": False}
    return json.dumps(whole | {"value" if key == "whole" else key: changes[key] for key in changes}).encode()


def decoded(body: bytes) -> Verdict:
    return verdict(**wire.decode(body, NUMBER).value)


@pytest.mark.parametrize(
    "answer",
    [
        wire.Answer(NUMBER, fields(Verdict.of(0.1 + 0.2, format=1 / 3))),
        wire.Answer(NUMBER, fields(Verdict.invalid("row 3: \u00e9")), last=True),
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
    sent = wire.encode(wire.Answer(wire.START, error=SlimeError("gone", where="here", todo="Look.")))
    error = wire.decode(wire.answer_body(bytearray(sent)) or b"", wire.START).error
    assert error is not None
    assert (error.what, error.where, error.todo) == ("gone", "here", "Look.")


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
        pickle.dumps(Verdict.of(1.0)),
        body(number=NUMBER - 1),
        body(number=None),
        body(whole=[1, 2]),
        body(whole={}),
        body(kind="perhaps"),
        body(kind=[]),
        body(value=None),
        body(value="1"),
        body(value=True),
        body(value=float("nan")),
        body(value=float("inf")),
        body(value=10**400),
        body(value=1e13),
        body(parts={"a": -1e31}),
        body(kind="error"),
        body(reason=5),
        body(parts=None),
        body(parts=[1]),
        body(parts={"a": "b"}),
        body(parts={"a": None}),
        body(whole={"kind": "value", "value": 1, "reason": "", "parts": {}, "extra": 1}),
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
    with pytest.raises((wire.BrokenWireError, *wire.MALFORMED)):
        decoded(wrong)


def test_a_lone_surrogate_does_not_come_through() -> None:
    answer = decoded(body(kind="invalid", value=None, reason="a\ud800b", parts={"c\udfff": 1}))
    assert (answer.reason, answer.parts) == ("a?b", {"c?": 1.0})


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
