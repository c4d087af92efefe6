"""Messages and answers between the driver and a worker, over a stream socket.

Messages go to the worker as pickles, which keep all kinds of values. Answers come from a process that runs somebody
else's code: they are JSON of bounded size with the number of their request, and every field is checked.
"""

from __future__ import annotations

import json
import pickle
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

START = 0
"""The number of the first request, which creates what the worker runs; all others are drawn at random."""
MAX_ANSWER_BYTES = 1 << 20
CHUNK = 1 << 16
"""Bytes that are read from a socket at a time; most messages are shorter."""
MAX_REASON_CHARS = 500
MALFORMED = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""Exceptions of reading JSON of the wrong form."""

_REQUEST = struct.Struct("!QQ")  # number, bytes
_ANSWER = struct.Struct("!I")  # bytes
_ENCODER = json.JSONEncoder(allow_nan=False)


class BrokenWireError(Exception):
    """Data that is not the answer to the request."""


class StartError(Exception):
    """A servant that cannot be created: the fact, what it concerns, and what to do next."""

    def __init__(self, what: str, *, where: str = "", todo: str) -> None:
        self.what, self.where, self.todo = what, where, todo
        super().__init__(" ".join(f"{f'{where}: ' if where else ''}{what}. {todo}".split()))


class FaultError(Exception):
    """An act of the servant other than answering; says what."""


@dataclass(frozen=True)
class Setup:
    """The first request to a worker.

    Attributes:
        kind, name, where: of the servant, for messages.
        key: under which its `options`, `memory_mb`, `num_workers` and `environment` were set, for messages.
        servant: `module:function` that makes it of `name` and `options`.
        memory_mb: MiB by which it and what it starts may grow.
        hidden: files that it may not read.
        own_frames: frames of the servant above the code that the words of a fault name.
        tells: the log gets a line on what confines it on this machine.
    """

    kind: str
    name: str
    options: Mapping[str, Any]
    where: str
    key: str
    servant: str
    memory_mb: int
    hidden: Sequence[str] = ()
    own_frames: int = 0
    tells: bool = False


@dataclass(frozen=True)
class Answer:
    """An answer of a worker to request `number`.

    Attributes:
        value: JSON.
        fault: what the servant did instead of answering.
        error: on the start: why the servant cannot be created.
        question: a number where the worker asks the driver something by `value`, and its answer is still to come.
        last: the worker can answer no more.
    """

    number: int
    value: Any = None
    fault: str = ""
    error: StartError | None = None
    question: int | None = None
    last: bool = False


def request(number: int, message: Any) -> bytes:
    """The bytes of one request."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _REQUEST.pack(number, len(body)) + body


class Requests:
    """The worker's end, a socket that blocks: requests, one after the other."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._data = sock, bytearray()

    def receive(self) -> tuple[int, bytes]:
        """Wait for one request: its number, and all its bytes. EOFError when the other side is gone."""
        while not self.has_one:
            self.read()
        number, length = _REQUEST.unpack_from(self._data)
        whole = bytes(self._data[: _REQUEST.size + length])
        del self._data[: len(whole)]
        return number, whole

    def read(self) -> None:
        """Take what has come, or wait for some; EOFError as above."""
        if not (chunk := self._sock.recv(CHUNK)):
            raise EOFError("the other side closed the connection")
        self._data += chunk

    @property
    def has_one(self) -> bool:
        """A whole request has come."""
        data = self._data
        return len(data) >= _REQUEST.size and len(data) >= _REQUEST.size + _REQUEST.unpack_from(data)[1]


def message(request: bytes) -> Any:
    """The message of a request."""
    return pickle.loads(memoryview(request)[_REQUEST.size :])


def encode(answer: Answer) -> bytes:
    """The bytes of one answer. ValueError or TypeError if its value is not JSON."""
    error = answer.error and [answer.error.what, answer.error.where, answer.error.todo]
    body = _ENCODER.encode(vars(answer) | {"error": error}).encode()
    return _ANSWER.pack(len(body)) + body


def answer_body(data: bytearray) -> bytes | None:
    """The JSON of the first answer in `data`, which is taken out; None while some of it is still to come. Raises
    BrokenWireError where it is too long."""
    if len(data) < _ANSWER.size:
        return None
    (length,) = _ANSWER.unpack_from(data)
    if length > MAX_ANSWER_BYTES:
        raise BrokenWireError(f"an answer of {length} bytes")
    if len(data) < _ANSWER.size + length:
        return None
    body = bytes(data[_ANSWER.size : _ANSWER.size + length])
    del data[: _ANSWER.size + length]
    return body


def decode(body: bytes, number: int) -> Answer:
    """The answer to request `number`; raises BrokenWireError where `body` is none, or one to another request."""
    try:
        fields = json.loads(body)
        if fields["number"] != number:
            raise BrokenWireError("an answer to another request")
        question = fields["question"]
        if question is not None and type(question) is not int:
            raise ValueError("a question has a number")
        error = None if fields["error"] is None else _error(*fields["error"])
        fault = one_line(text(fields["fault"]))
        return Answer(number, fields["value"], fault, error, question, bool(fields["last"]))
    except MALFORMED as problem:
        raise BrokenWireError(f"no answer ({type(problem).__name__})") from problem


def one_line(text: str) -> str:
    """`text` in one line of at most `MAX_REASON_CHARS`."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON_CHARS else line[: MAX_REASON_CHARS - 3] + "..."


def text(value: Any) -> str:
    """A text without lone surrogates, which no file takes; TypeError if `value` is none."""
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value.encode(errors="replace").decode()


def _error(what: Any, where: Any, todo: Any) -> StartError:
    if not what or not todo:
        raise ValueError("it says what happened and what to do")
    return StartError(text(what), where=text(where), todo=text(todo))
