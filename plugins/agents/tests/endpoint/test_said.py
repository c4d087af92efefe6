"""Requests of one client, one after the other, are read as each would be alone."""

from __future__ import annotations

import random
from typing import Any

import pytest

from slime_agents.endpoint import anthropic_messages, chat_completions
from slime_agents.endpoint.said import RefusedRequestError, Repeated

CONTENTS = ["a", "b", [{"type": "text", "text": "a"}], [{"type": "text", "text": "<think>x</think>b"}]]


def calls(dialect: Any) -> list[dict[str, Any]]:
    """The same call, with arguments that Python calls equal, and others do not."""
    if dialect is anthropic_messages:
        parts = [{"type": "tool_use", "id": "1", "name": "f", "input": {"x": x}} for x in (1, True, 1.0)]
        return [{"role": "assistant", "content": [part]} for part in parts]
    functions = [{"name": "f", "arguments": given} for given in ('{"x": 1}', {"x": True}, {"x": 1.0})]
    return [{"role": "assistant", "tool_calls": [{"id": "1", "function": function}]} for function in functions]


def history(random_: random.Random, dialect: Any) -> list[dict[str, Any]]:
    plain = [{"role": role, "content": content} for role in ("user", "assistant") for content in CONTENTS]
    return [random_.choice([*plain, *calls(dialect)]) for _ in range(random_.randrange(6))]


def test_a_history_that_is_repeated_or_changed_is_read_as_a_new_one() -> None:
    drawn, repeated = random.Random(5), Repeated()
    messages: dict[Any, list[dict[str, Any]]] = {chat_completions: [], anthropic_messages: []}
    for _ in range(1000):
        dialect = drawn.choice(list(messages))
        kept = messages[dialect][: drawn.randrange(7)]
        body = {"messages": [*kept, *history(drawn, dialect)]}
        messages[dialect] = body["messages"]
        assert repr(dialect.read(body, repeated)) == repr(dialect.read(body, Repeated()))


def test_what_is_wrong_is_named_by_its_place_each_time() -> None:
    repeated = Repeated()
    body = {"messages": [{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}]}
    for _ in range(2):
        with pytest.raises(RefusedRequestError) as refused:
            chat_completions.read(body, repeated)
        assert refused.value.param == "messages[1]"
