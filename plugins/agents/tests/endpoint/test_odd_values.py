"""Odd values in calls, results and histories: each reaches the client, comes back as the same, and costs nothing."""

from __future__ import annotations

import json
from http import HTTPStatus

import httpx
import pytest

from plugins.agents.tests.endpoint.played import END, Stage
from slime.types import Status
from slime_agents.endpoint import values
from slime_agents.endpoint.said import Call, Said

DEEP = "[" * 190 + "]" * 190
ARGUMENTS = {
    "an integer of 65 bits": "18446744073709551616",
    "a negative one": "-9223372036854775809",
    "one of 30 digits": "123456789012345678901234567890",
    "one of 3,000 digits": "1" + "0" * 3000,
    "one that a double cannot hold": "9007199254740993",
    "one in a list in an object": '{"x": [1, 18446744073709551617, {"y": -18446744073709551617}]}',
    "a float beyond doubles": "1e999",
    "a number that is none": "NaN",
    "infinity": "[Infinity, -Infinity]",
    "minus zero": "[-0.0, -0, 1.0, 1e0]",
    "half of a character": r'"\ud83d"',
    "the other half": r'"x\ude00y"',
    "halves in the wrong order": r'"\ude00\ud83d"',
    "a whole character in halves": r'"\ud83d\ude00"',
    "half of a character as a name": r'{"\udbff": 1}',
    "a zero byte": r'"\u0000"',
    "deep nesting": DEEP,
    "a name twice": '{"x": 1, "x": 18446744073709551616}',
    "many digits behind the point": "0.1000000000000000055511151231257827",
    "an empty name": '{"": null}',
}


def turns(arguments):
    call = f'<tool_call>\n{{"name": "add", "arguments": {{"a": {arguments}}}}}\n</tool_call>{END}'
    return iter([call, f"so{END}", call, f"so{END}"])


def as_javascript(value):
    """What JSON.parse and JSON.stringify make of a value: all numbers are doubles."""
    return values.comparable(value)


@pytest.mark.parametrize("client", ["python", "javascript"])
@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_a_call_with_odd_arguments_is_a_call_and_comes_back_as_the_same(tmp_path, arguments, client):
    say = turns(arguments)
    stage = Stage(tmp_path, lambda before: next(say))

    async def agent(task, endpoint):
        async with httpx.AsyncClient(timeout=60) as http:

            async def ask(path, body):
                content = json.dumps(body).encode()
                answer = await http.post(f"{endpoint.url}/{path}", content=content)
                assert answer.status_code == HTTPStatus.OK, answer.text
                return json.loads(answer.content.decode())

            def echoed(value):
                return as_javascript(value) if client == "javascript" else value

            function = {"name": "add", "description": "Add.", "parameters": {"type": "object"}}
            asked = {"role": "user", "content": "add"}
            body = {"messages": [asked], "tools": [{"type": "function", "function": function}]}
            said = (await ask("chat/completions", body))["choices"][0]["message"]
            call = said["tool_calls"][0]
            call["function"]["arguments"] = json.dumps(echoed(json.loads(call["function"]["arguments"])))
            result = {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(echoed(json.loads(arguments)))}
            await ask("chat/completions", {**body, "messages": [asked, said, result]})

            asked = {"role": "user", "content": "add again"}
            body = {"messages": [asked], "tools": [{"name": "add", "input_schema": {"type": "object"}}]}
            said = {"role": "assistant", "content": (await ask("messages", body))["content"]}
            said["content"][0]["input"] = echoed(said["content"][0]["input"])
            result = {"type": "tool_result", "tool_use_id": said["content"][0]["id"], "content": arguments}
            await ask("messages", {**body, "messages": [asked, said, {"role": "user", "content": [result]}]})

    sample = stage.play(agent)
    assert sample.status is Status.COMPLETED, sample.verdict
    stage.check(sample)
    assert sample.metadata == {"requests": 4, "forks": 1, "ill_formed_calls": 0}
    assert sum(f'"a": {arguments}}}' in text for text in stage.trained(sample)) == 2, "as the model wrote it"


HISTORY = {
    "a text with half of a character": [{"role": "user", "content": "x\ud83d"}],
    "a result with one": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": "\\ud83d"}'}}]},
        {"role": "tool", "tool_call_id": "1", "content": "\udfff"},
    ],
    "a call's arguments with an integer of 65 bits": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": 2**65}}}]},
        {"role": "tool", "tool_call_id": "1", "content": "1"},
    ],
    "arguments that are nested deep": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": json.loads(
            '{"a": %s}' % ("[" * 400 + "]" * 400))}}]},
        {"role": "tool", "tool_call_id": "1", "content": "1"},
    ],
    "arguments that are no object": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "1" * 5000}}]},
        {"role": "tool", "tool_call_id": "1", "content": "1"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("messages", HISTORY.values(), ids=HISTORY)
def test_a_history_with_odd_values_is_answered(tmp_path, messages):
    stage = Stage(tmp_path, lambda before: f"so{END}")

    async def agent(task, endpoint):
        async with httpx.AsyncClient(timeout=60) as http:
            content = json.dumps({"messages": messages, "metadata": {"n": 2**70}}).encode()
            answer = await http.post(f"{endpoint.url}/chat/completions", content=content)
            assert answer.status_code == HTTPStatus.OK, answer.text
            schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 2**64}}}
            tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
            body = {"messages": [{"role": "user", "content": "y"}], "tools": [tool]}
            assert (await http.post(f"{endpoint.url}/chat/completions", content=json.dumps(body))).status_code == 200
            assert "18446744073709551616" in stage.tokenizer.decode(stage.engine.requests[-1])

    sample = stage.play(agent)
    assert sample.status is Status.COMPLETED, sample.verdict
    stage.check(sample)


def test_values_that_clients_make_of_one_another_are_the_same_and_others_are_not():
    def key(arguments):
        return Said("assistant", "", (Call.read("1", "f", arguments),)).key

    same = [
        ['{"a": 1}', '{"a": 1.0}', '{"a": 1e0}'],
        ['{"a": 18446744073709551616}', '{"a": 18446744073709552000.0}'],
        ['{"a": NaN}', '{"a": null}'],
        ['{"a": 0}', '{"a": -0.0}'],
        ['{"a": 1, "b": 2}', '{"b": 2, "a": 1}'],
    ]
    keys = [{key(each) for each in group} for group in same]
    assert [len(group) for group in keys] == [1] * len(same)
    assert len(set.union(*keys)) == len(same)
    assert key('{"a": true}') not in keys[0], "true is no number"


def test_what_is_sent_is_json_that_every_client_reads():
    for value in (
        {"a": 2**70, "b": float("nan")},
        ["\ud83d", 1],
        json.loads("[" * 300 + "]" * 300),
        {"a": float("inf")},
    ):
        json.loads(values.dumps(value).decode(), parse_constant=pytest.fail)
    assert values.loads(values.dumps({"a": 2**70, "b": 1.5})) == {"a": 2**70, "b": 1.5}
    assert values.loads(b'["\\ud83d\\ude00", "\\ud83d"]') == ["\U0001f600", "\ufffd"]
