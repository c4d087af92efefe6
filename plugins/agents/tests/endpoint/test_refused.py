"""Requests that are refused for what is in them, beside those like them that are answered."""

from __future__ import annotations

import gc
import json
import tracemalloc

import pytest

from plugins.agents.tests.endpoint.played import END
from plugins.agents.tests.endpoint.test_bounds import HELLO, play

TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}]


def nested(depth):
    return json.loads("[" * depth + "]" * depth)


def test_what_is_nested_too_deep_is_the_client_s_fault(tmp_path):
    async def agent(endpoint, client):
        for url, tools in (
            (f"{endpoint.url}/chat/completions",
             lambda value: [{"type": "function", "function": {"name": "a", "parameters": {"x": value}}}]),
            (f"{endpoint.anthropic_url}/v1/messages",
             lambda value: [{"name": "a", "input_schema": {"x": value}}]),
        ):  # fmt: skip
            for depth, status in ((50, 200), (500, 400), (900, 400)):
                answer = await client.post(url, json={**HELLO, "tools": tools(nested(depth))})
                assert answer.status_code == status
                assert status == 200 or "nested" in answer.json()["error"]["message"]
            answer = await client.post(url, content=b'{"messages": ' + b"[" * 10**5 + b"]" * 10**5 + b"}")
            assert answer.status_code == 400

    play(tmp_path, agent)


@pytest.mark.parametrize("arguments", ["[" * 5000, '{"a": %s}' % ("[" * 500 + "]" * 500), '{"a": 1%s}' % ("0" * 5000)])
def test_a_call_that_cannot_be_sent_as_json_is_text(tmp_path, arguments):
    """A client's, and the model's own."""
    call = '<tool_call>\n{"name": "add", "arguments": %s}\n</tool_call>'
    said = [call % arguments, call % '{"a": 1}']
    say = iter([each + END for each in said + said])

    async def agent(endpoint, client):
        for url in (f"{endpoint.url}/chat/completions", f"{endpoint.anthropic_url}/v1/messages"):
            ours = TOOLS if url.endswith("completions") else [{"name": "add", "input_schema": {"type": "object"}}]
            for finish in (("stop", "end_turn"), ("tool_calls", "tool_use")):
                answer = (await client.post(url, json={**HELLO, "tools": ours}, headers=FIRST)).json()
                how = answer["choices"][0]["finish_reason"] if "choices" in answer else answer["stop_reason"]
                assert how in finish
        called = {"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments}}
        messages = [*HELLO["messages"], {"role": "assistant", "content": "", "tool_calls": [called]},
                    {"role": "tool", "tool_call_id": "c", "content": "1"}]  # fmt: skip
        url = f"{endpoint.url}/chat/completions"
        assert (await client.post(url, json={"messages": messages, "tools": TOOLS})).status_code == 200

    play(tmp_path, agent, lambda before: next(say, f"so{END}"))


FIRST = {"x-stainless-retry-count": "0"}


@pytest.mark.parametrize(("name", "path"), [("stop", "v1/chat/completions"), ("stop_sequences", "v1/messages")])
def test_a_stop_string_has_a_character_at_least(tmp_path, name, path):
    async def agent(endpoint, client):
        for stop, status in (([""], 400), (["a", ""], 400), ([1], 400), (["x"] * 65, 400), (["x"] * 64, 200)):
            answer = await client.post(f"{endpoint.anthropic_url}/{path}", json={**HELLO, name: stop})
            assert answer.status_code == status, stop
        assert name in (await client.post(f"{endpoint.anthropic_url}/{path}", json={**HELLO, name: [""]})).text

    play(tmp_path, agent)


def test_a_verdict_has_few_parts_with_plain_names(tmp_path):
    async def agent(endpoint, client):
        url = f"{endpoint.anthropic_url}/verdict"
        for name in ("../../x\n<b>", "", ".hidden", "a/b", "a b", "\u202e", "x" * 101):
            refused = await client.post(url, json={"reward": 1, "parts": {name: 1}})
            assert refused.status_code == 400
            assert "letters a-z, A-Z, 0-9, _, - and ." in refused.json()["error"]["message"]
        many = {f"part{number}": number for number in range(101)}
        assert (await client.post(url, json={"reward": 1, "parts": many})).status_code == 400
        assert (await client.post(url, json={"reward": 1, "parts": {}, "x": "x" * 10**5})).status_code == 413
        del many["part100"]
        named = {"exact_match": 1, "Rouge-L": 0.5, "f1.macro": 0.25, "x" * 100: 1}
        for parts in (many, named):
            assert (await client.post(url, json={"reward": 0.5, "parts": parts})).status_code == 204

    sample = play(tmp_path, agent)
    assert sample.verdict.parts["f1.macro"] == 0.25


def test_more_messages_than_any_conversation_has_are_refused_at_once(tmp_path):
    """Before one of them is read, rendered or encoded: 200,000 messages of 6 MB would take seconds."""

    async def agent(endpoint, client):
        url = f"{endpoint.url}/chat/completions"
        small = b'{"role":"user","content":"x"}'
        for number, status, said in (
            (500, 200, ""),
            (5000, 400, "4096 is the limit"),
            (200_000, 413, "limit of this"),
        ):
            body = b'{"messages":[' + b",".join([small] * number) + b"]}"
            answer = await client.post(url, content=body)
            assert (answer.status_code, said in answer.text) == (status, True), answer.text[:300]
        assert answer.json()["error"]["message"].startswith("the body has more than 500000 braces")

    play(tmp_path, agent)


def test_what_was_refused_is_not_kept(tmp_path):
    """An agent whose history is too long may ask again and again."""

    async def agent(endpoint, client):
        async def refused(number):
            body = {"messages": [{"role": "user", "content": f"{number}" + "x" * 10**6}]}
            assert (await client.post(f"{endpoint.url}/chat/completions", json=body)).status_code == 400

        await refused(-1)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(10):
            await refused(number)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert grown < 5 * 10**6, "of ten megabytes, in three forms"

    play(tmp_path, agent)
