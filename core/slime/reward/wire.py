"""What the service and a worker's scorer send each other over a stream socket.

Requests go to the worker as pickles, which keep whatever a row held. Answers come from a process that runs somebody
else's code: they are JSON of bounded size with the number of their request, and every field of them is checked.
Nothing that a worker sends is ever unpickled.
"""

from __future__ import annotations

import json
import math
import pickle
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from slime.errors import SlimeError
from slime.types import Sample, Verdict, VerdictKind

START = 0
"""The number of the first request, which creates the reward; those of samples are drawn at random."""
MAX_ANSWER_BYTES = 1 << 20
CHUNK = 1 << 16
"""Bytes that are read from a socket at a time; most messages are shorter."""
MAX_REASON_CHARS = 500

_REQUEST = struct.Struct("!QQ")  # number, bytes
_ANSWER = struct.Struct("!I")  # bytes
_ENCODER = json.JSONEncoder(allow_nan=False)


class BrokenWireError(Exception):
    """What came is not the answer to the request."""


@dataclass(frozen=True)
class Answer:
    """What a worker says to request `number`.

    Attributes:
        verdict: on a sample.
        error: on the start: why the reward cannot be created.
        last: the worker can judge no more.
    """

    number: int
    verdict: Verdict | None = None
    error: SlimeError | None = None
    last: bool = False


def request(number: int, message: Any) -> bytes:
    """The bytes of one request."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _REQUEST.pack(number, len(body)) + body


def lean(sample: Sample) -> Sample:
    """What a reward may read of `sample`: all but log-probs, loss mask and weight spans, the largest part of it."""
    return replace(sample, logprobs=[], loss_mask=[], spans=[])


def receive_request(sock: socket.socket) -> tuple[int, bytes]:
    """Wait for one request: its number, and all its bytes. EOFError when the other side is gone."""
    data = bytearray()
    while len(data) < _REQUEST.size or len(data) < _REQUEST.size + _REQUEST.unpack_from(data)[1]:
        if not (chunk := sock.recv(CHUNK)):
            raise EOFError("the other side closed the connection")
        data += chunk
    return _REQUEST.unpack_from(data)[0], bytes(data)


def message(request: bytes) -> Any:
    """What a request says."""
    return pickle.loads(memoryview(request)[_REQUEST.size :])


def encode(answer: Answer) -> bytes:
    """The bytes of one answer."""
    error = answer.error and [answer.error.what, answer.error.where, answer.error.todo]
    verdict = answer.verdict and vars(answer.verdict)
    fields = {"number": answer.number, "verdict": verdict, "error": error, "last": answer.last}
    body = _ENCODER.encode(fields).encode()
    return _ANSWER.pack(len(body)) + body


def answer_body(data: bytearray) -> bytes | None:
    """The JSON of the one answer in `data`; None while some of it is still to come.

    Raises:
        BrokenWireError: it is too long, or something follows it.
    """
    if len(data) < _ANSWER.size:
        return None
    (length,) = _ANSWER.unpack_from(data)
    if length > MAX_ANSWER_BYTES:
        raise BrokenWireError(f"an answer of {length} bytes")
    if len(data) > _ANSWER.size + length:
        raise BrokenWireError("more than one answer")
    return bytes(data[_ANSWER.size :]) if len(data) == _ANSWER.size + length else None


def decode(body: bytes, number: int) -> Answer:
    """The answer to request `number`.

    Raises:
        BrokenWireError: `body` is no answer, or one to another request.
    """
    try:
        fields = json.loads(body)
        if fields["number"] != number:
            raise BrokenWireError("an answer to another request")
        verdict = None if fields["verdict"] is None else _verdict(**fields["verdict"])
        error = None if fields["error"] is None else _error(*fields["error"])
        return Answer(number, verdict, error, bool(fields["last"]))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as problem:
        raise BrokenWireError(f"no answer ({type(problem).__name__})") from problem


def one_line(text: str) -> str:
    """`text` in one line of at most `MAX_REASON_CHARS`."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON_CHARS else line[: MAX_REASON_CHARS - 3] + "..."


def _verdict(kind: str, value: Any, reason: Any, parts: Mapping[str, Any]) -> Verdict:
    named = VerdictKind(kind)
    if (value is None) == (named is VerdictKind.VALUE):
        raise ValueError("only a VALUE verdict carries a value")
    checked = {_text(name): _number(part) for name, part in parts.items()}
    return Verdict(named, None if value is None else _number(value), one_line(_text(reason)), checked)


def _error(what: Any, where: Any, todo: Any) -> SlimeError:
    if not what or not todo:
        raise ValueError("a SlimeError says what happened and what to do")
    return SlimeError(_text(what), where=_text(where), todo=_text(todo))


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError("not a finite number")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value.encode(errors="replace").decode()  # lone surrogates could not be written to a file
