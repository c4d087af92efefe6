"""Messages as chat templates take them: their other spellings, and which of them a template left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from slime.types import Message
from slime_agents.conversations.thinking import parted

RESULT_ROLES = ("tool", "observation", "ipython")
"""Roles that templates give a tool's output. The first is every API's."""


def whole(value: Any) -> Any:
    """Messages without halves of characters, which no tokenizer takes; tools return them, and clients send them."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {whole(name): whole(each) for name, each in value.items()}
    return [whole(each) for each in value] if isinstance(value, list | tuple) else value


def left_out(messages: Sequence[Message], text: str) -> int | None:
    """Number of the first message that a text does not have, from 1."""
    end = 0
    for number, message in enumerate(messages, 1):
        said = _words(message)
        # Most stand one behind another: of thousands of messages nobody should look from the begin.
        place, length = text.find(said, end), len(said)
        if place < 0:
            said = _in_json(said)
            place, length = text.find(said, end), len(said)
        if place >= 0:
            end = place + length
        elif not is_in(message, text):
            return number
    return None


def is_in(message: Message, text: str) -> bool:
    """A text has the words of a message. Templates write some messages as JSON."""
    said = _words(message)
    return said in text or _in_json(said) in text


def _in_json(said: str) -> str:
    return json.dumps(said, ensure_ascii=False)[1:-1]


def _words(message: Message) -> str:
    """What a message says, without earlier thinking, which templates drop."""
    return parted(message.get("content") or "")[2].strip()


def spellings(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """The messages as they are, and as other templates want them: arguments of calls as objects or as JSON, and
    results of tools under other roles."""
    yield messages
    if any(message.get("tool_calls") for message in messages):
        for as_objects in (True, False):
            yield [_with_arguments(message, as_objects=as_objects) for message in messages]
    if any(message["role"] in RESULT_ROLES for message in messages):
        for role in RESULT_ROLES:
            yield [{**message, "role": role} if message["role"] in RESULT_ROLES else message for message in messages]


def _with_arguments(message: Message, *, as_objects: bool) -> Message:
    if not message.get("tool_calls"):
        return message
    calls = [dict(call) for call in message["tool_calls"]]
    for call in calls:
        arguments = call["function"]["arguments"]
        if isinstance(arguments, str) and as_objects:
            with suppress(ValueError):
                arguments = json.loads(arguments)
        elif not isinstance(arguments, str) and not as_objects:
            arguments = json.dumps(arguments, ensure_ascii=False)
        call["function"] = {**call["function"], "arguments": arguments}
    return {**message, "tool_calls": calls}
