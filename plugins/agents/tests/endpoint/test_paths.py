"""Paths that are not answered, each beside one that is, and what the model would read of a request."""

from __future__ import annotations

import httpx
import openai
import pytest

from plugins.agents.tests.endpoint.played import END, Stage
from plugins.agents.tests.endpoint.test_bounds import HELLO, play
from slime_agents.endpoint import paths

TOOL = {
    "name": "add",
    "description": "Add.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
CALL = f'<think>\nwhy\n</think>\n\n<tool_call>\n{{"name": "add", "arguments": {{"a": 1}}}}\n</tool_call>{END}'
SAYS = {
    "completions": "Ask chat/completions",
    "complete": "Ask messages",
    "embeddings": "a client of its own",
    "audio/speech": "a client of its own",
    "files": "a client of its own",
    "messages/batches": "no batches",
    "chat/completions/chatcmpl-1": "not stored",
    "chat/completion": "Did you mean 'chat/completions'?",
    "chat/completions/": "not stored",
    "message": "Did you mean 'messages'?",
    "openai/deployments/policy/chat/completions": "Azure",
    "models/policy:generateContent": "Gemini",
    "v1/messages": "/v1 twice",
    "nothing/like/it": "It answers chat/completions, messages, messages/count_tokens, models, "
    "responses, responses/input_tokens, verdict",
}


def test_every_unknown_path_is_told_what_to_ask_in_place_of_it(tmp_path):
    async def agent(endpoint, client):
        for path, said in SAYS.items():
            for method in ("POST", "GET"):
                answer = await client.request(method, f"{endpoint.url}/{path}", json=HELLO)
                found = answer.json()
                assert (answer.status_code, said in found["error"]["message"]) == (404, True), (path, answer.text)
                assert found["error"]["type"] == ("not_found_error" if "type" in found else "invalid_request_error")
                assert ("type" in found) == path.startswith(("messages/", "v1/", "complete"))
                assert endpoint.key not in answer.text, "an agent may show an error to anybody"

    play(tmp_path, agent)


def test_a_path_asked_by_another_method_names_the_right_one(tmp_path):
    async def agent(endpoint, client):
        for path, right in paths.METHODS.items():
            for method in {"POST", "GET", "PUT", "DELETE"} - set(right.split(", ")):
                url = f"{endpoint.anthropic_url}/{'' if path == 'verdict' else 'v1/'}{path}"
                url += "policy" * path.endswith("/")
                answer = await client.request(method, url, headers={"anthropic-version": "2023-06-01"})
                assert (answer.status_code, answer.headers["allow"]) == (405, right), path
                is_anthropic = answer.json().get("type") == "error"
                assert is_anthropic or path.startswith("responses"), "the client is Anthropic's"
                assert f"asked by {right}" in answer.json()["error"]["message"]

    play(tmp_path, agent)


def test_errors_are_what_the_clients_own_classes_say(tmp_path):
    anthropic = pytest.importorskip("anthropic")

    async def agent(endpoint, client):
        async with openai.AsyncOpenAI(base_url=endpoint.url, api_key=endpoint.key) as chat:
            with pytest.raises(openai.NotFoundError, match="makes no embeddings"):
                await chat.embeddings.create(model="m", input="x")
            for name in ("policy", "org/any-name"):
                assert (await chat.models.retrieve(name)).id == name
        async with anthropic.AsyncAnthropic(base_url=endpoint.anthropic_url, api_key=endpoint.key) as chat:
            with pytest.raises(anthropic.NotFoundError, match="no batches"):
                await chat.messages.batches.list()
            assert (await chat.models.retrieve("policy")).display_name == "policy"
            twice = chat.copy(base_url=endpoint.url)
            with pytest.raises(anthropic.NotFoundError, match="/v1 twice"):
                await twice.messages.create(model="m", max_tokens=9, messages=HELLO["messages"])

    play(tmp_path, agent)


def test_counted_tokens_are_those_that_the_engine_reads(tmp_path):
    """At first, behind an answer, in a branch, and with what the client changed; counting leaves nothing behind."""
    say = iter([CALL, f"It is 3.{END}", f"Yes.{END}", f"No.{END}", f"Other.{END}"])
    stage = Stage(tmp_path, lambda before: next(say))

    async def agent(task, endpoint):
        async with httpx.AsyncClient(timeout=60) as client:

            async def ask(messages):
                fields = {"model": "m", "system": "You add.", "tools": [TOOL], "messages": messages}
                url, headers = f"{endpoint.url}/messages", {"x-stainless-retry-count": "0"}
                counted = (await client.post(f"{url}/count_tokens", json=fields)).json()["input_tokens"]
                answer = (await client.post(url, json=fields, headers=headers)).json()
                assert counted == answer["usage"]["input_tokens"] == len(stage.engine.requests[-1])
                return [*messages, {"role": "assistant", "content": answer["content"]}]

            first = await ask([{"role": "user", "content": "1 + 2"}])
            result = {"type": "tool_result", "tool_use_id": first[-1]["content"][-1]["id"], "content": "3"}
            second = await ask([*first, {"role": "user", "content": [result]}])
            for more in ("sure?", "really?"):
                await ask([*second, {"role": "user", "content": more}])
            await ask([{"role": "user", "content": "2 + 2"}])

    sample = stage.play(agent)
    stage.check(sample)
    assert (sample.metadata["requests"], sample.metadata["forks"]) == (5, 1)


def test_what_cannot_be_asked_cannot_be_counted(tmp_path):
    async def agent(endpoint, client):
        url = f"{endpoint.url}/messages/count_tokens"
        for body, said in (
            ({"messages": []}, "no message"),
            ({"messages": [{"role": "user", "content": "x" * 21_000}]}, "prompt is too long"),
            ({"messages": [*HELLO["messages"], {"role": "assistant", "content": "so"}]}, "the assistant's"),
        ):
            answer = await client.post(url, json=body)
            assert (answer.status_code, said in answer.json()["error"]["message"]) == (400, True), answer.text
        assert (await client.post(url, json=HELLO)).json()["input_tokens"] > 3

    play(tmp_path, agent)
