"""Messages, requests and answers in one form for every API, and the fields that all APIs have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from slime.types import Message
from slime_agents.conversations.thinking import parted
from slime_agents.endpoint import values

THINK, END_THINK = "<think>", "</think>"
FULL = "context_length_exceeded"
"""Code by which agents know that they have to compact their history."""
ANY_TOOL = "*"
MAX_MESSAGES, MAX_STOPS = 4096, 64
"""Messages and stop strings of a request. Finding and rendering this many messages takes a tenth of a second."""


class RefusedRequestError(Exception):
    """A request that cannot be honoured: why, the field to blame, and a code that agents know."""

    def __init__(self, message: str, param: str, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param, self.code = message, param, code


@dataclass(frozen=True)
class Call:
    """A call of a tool, whose arguments are text where they are no JSON."""

    id: str
    name: str
    arguments: Mapping[str, Any] | str

    @classmethod
    def read(cls, number: str, name: str, arguments: Any) -> Call:
        if isinstance(arguments, str):
            try:
                found = values.loads((arguments or "{}").encode())
            except (ValueError, RecursionError):
                return cls(number, name, arguments)
            return cls(number, name, found if isinstance(found, dict) and values.is_shallow(found) else arguments)
        if not isinstance(arguments, dict):
            return cls(number, name, {})
        return cls(number, name, arguments if values.is_shallow(arguments) else json.dumps(arguments))

    @property
    def json(self) -> str:
        if isinstance(self.arguments, str):
            return self.arguments
        return json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True)
class Said:
    """A message.

    Attributes:
        role: system, user, assistant or tool.
        call_id: of a tool's message, the call that it answers.
    """

    role: str
    text: str
    calls: tuple[Call, ...] = ()
    reasoning: str = ""
    call_id: str = ""

    @cached_property
    def key(self) -> bytes:
        """A key of the message, however a client wrote it down: ids are its own, thinking may be missing, arguments are
        compared as values."""
        calls = [[call.name, values.comparable(call.arguments)] for call in self.calls]
        text = self.text
        if self.role == "assistant" and text.lstrip().startswith(THINK):  # which a client kept in it
            text = parted(text)[2]
        return values.digest([self.role, text.strip(), calls])

    def likeness(self, other: Said) -> int:
        """Evidence for this being the other one, of two with equal keys."""
        thought = bool(self.reasoning) and self.reasoning.strip() == other.reasoning.strip()
        if not self.calls:
            return int(thought)
        return 2 * len({call.id for call in self.calls} & {call.id for call in other.calls}) + thought

    def message(self, names: Mapping[str, str], *, as_text: bool) -> Message:
        """The message for a chat template.

        Args:
            names: of functions, by the ids of their calls.
            as_text: the template has no place for calls: they stand in the text, as the model wrote them.
        """
        message: dict[str, Any] = {"role": self.role, "content": self.text}
        if self.role == "tool":
            message |= {"tool_call_id": self.call_id, "name": names.get(self.call_id, "tool")}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls and as_text:
            message["content"] = "\n".join([self.text, *(f"{call.name}\n{call.json}" for call in self.calls)]).strip()
        elif self.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.calls
            ]
        return message


def messages_of(said: Sequence[Said], before: Sequence[Said] = (), *, as_text: bool = False) -> list[Message]:
    """Messages for a chat template; `before` are earlier ones, whose calls may be answered."""
    names = {call.id: call.name for one in (*before, *said) for call in one.calls}
    return [one.message(names, as_text=as_text) for one in said]


class Repeated:
    """Reads only what is new in the history that a client sends with each request.

    Attributes:
        answered: requests and answers by the answers' ids, which clients of some APIs send in place of a history.
    """

    def __init__(self) -> None:
        self.answered: dict[str, tuple[Request, Answer]] = {}
        self._read: Callable[[Any, int], Iterable[Said]] | None = None
        self._known: list[tuple[bytes, tuple[Said, ...]]] = []

    def said(self, messages: Sequence[Any], read: Callable[[Any, int], Iterable[Said]]) -> list[Said]:
        """All messages of a request; `read` takes apart the one of a number."""
        if read is not self._read:
            self._read, self._known = read, []
        written = [values.digest(message, sort_keys=False) for message in messages]
        pairs = zip(self._known, written, strict=False)
        num_known = next((n for n, (known, now) in enumerate(pairs) if known[0] != now), None)
        if num_known is None:
            num_known = min(len(self._known), len(written))
        del self._known[num_known:]
        for number in range(num_known, len(written)):
            self._known.append((written[number], tuple(read(messages[number], number))))
        return [one for _, said in self._known for one in said]


@dataclass(frozen=True)
class Form:
    """The form of an answer: JSON by a schema, or any JSON object; its name and use; and the field that asks for it."""

    schema: Mapping[str, Any] | None
    about: str
    param: str


@dataclass(frozen=True)
class Request:
    """A client's request.

    Attributes:
        tools: JSON schemas, as in the OpenAI API.
        model: the name that the client gave.
        previous: id of the answer that these messages stand behind; None: they are all that was said.
        demanded: name of the tool that is to be called; `ANY_TOOL`: one of them.
    """

    said: tuple[Said, ...]
    tools: Sequence[Mapping[str, Any]]
    max_tokens: int | None
    stop: tuple[str, ...]
    may_call: bool
    is_streamed: bool
    wants_usage: bool
    model: str
    previous: str | None = None
    form: Form | None = None
    demanded: str = ""

    @cached_property
    def tools_key(self) -> bytes:
        return values.digest(self.tools)

    def prepare(self) -> None:
        """Compute the keys by which its place is found, which takes a while for a long history.

        Raises:
            RefusedRequestError: a tool is nested too deep.
        """
        if not values.is_shallow(self.tools):
            raise RefusedRequestError(f"the tools are nested more than {values.MAX_DEPTH} deep", "tools")
        _ = self.tools_key
        for one in self.said:
            _ = one.key

    @property
    def terms(self) -> tuple[Any, ...]:
        """Terms that a repeated request has in common with the first, beside the messages."""
        return self.max_tokens, self.stop, self.may_call, self.form


@dataclass(frozen=True)
class Answer:
    """The model's answer.

    Attributes:
        finish: stop, tool_calls, length, or `stop_string`.
        stop: the string that ended it.
        num_before, num_sampled: tokens.
    """

    id: str
    said: Said
    finish: str
    stop: str | None
    num_before: int
    num_sampled: int


_TEXTS = ("text", "input_text", "output_text")
"""Types of parts with text, as the APIs call them."""
OF_TEXTS = ("type", "text", "cache_control", "prompt_cache_breakpoint", "annotations", "citations", "parsed_output",
             "logprobs")  # fmt: skip
"""Fields of such parts: all but the first two are of no account."""


def check_results(said: Sequence[Said]) -> None:
    """Raises RefusedRequestError: a tool's result has no call before it."""
    known = set[str]()
    for one in said:
        known |= {call.id for call in one.calls}
        if one.role == "tool" and (one.call_id not in known if one.call_id else not known):
            what = f"the result of the call '{one.call_id:.80}' stands behind no such call: send the question, too"
            raise RefusedRequestError(what, "messages")


def text_of(content: Any, param: str) -> str:
    """The text of a message's content, which may be missing, a text, or parts.

    Raises:
        RefusedRequestError: it is something else than text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RefusedRequestError("content is neither text nor a list of parts", param)
    found = []
    for part in content:
        if isinstance(part, str):
            found.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str) and part.get("type", "text") in _TEXTS:
            if other := next(
                (name for name, value in part.items() if name not in OF_TEXTS and value is not None), None
            ):
                raise RefusedRequestError(f"'{other:.80}' of a part with text is not known", param)
            found.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise RefusedRequestError(f"content of the type '{kind}' is not supported: text alone is", param)
    return "\n".join(found)


def of_kind(body: Mapping[str, Any], name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    """A field of a request. Raises RefusedRequestError: it is of another kind."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise RefusedRequestError(f"'{name}' is {value!r:.60}", name)
    return value


def messages_in(body: Mapping[str, Any]) -> Sequence[Any]:
    """The messages of a request, unread. Raises RefusedRequestError: they are no list, or too many."""
    messages: list[Any] = of_kind(body, "messages", list, [])
    if len(messages) > MAX_MESSAGES:
        raise RefusedRequestError(f"there are {len(messages)} messages: {MAX_MESSAGES} is the limit", "messages", FULL)
    return messages


def stops_in(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Strings at which an answer ends. Raises RefusedRequestError: one is empty or no text, or they are too many."""
    value = of_kind(body, name, (str, list), [])
    found = (value,) if isinstance(value, str) else tuple(value)
    if len(found) > MAX_STOPS or not all(isinstance(each, str) and each for each in found):
        raise RefusedRequestError(
            f"'{name}' is {value!r:.60}, not {MAX_STOPS} texts or fewer, none of them empty", name
        )
    return found


def positive(body: Mapping[str, Any], name: str) -> int | None:
    """A field of a request that counts something. Raises RefusedRequestError: it is no number, or below 1."""
    value: int | None = of_kind(body, name, int)
    if value is not None and value < 1:
        raise RefusedRequestError(f"'{name}' is {value}, not 1 or more", name)
    return value
