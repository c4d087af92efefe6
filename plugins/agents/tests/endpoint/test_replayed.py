"""What real clients sent, sent again with the liberties that clients take: the tree is the same each time."""

from __future__ import annotations

import asyncio
import copy
import json
import random
import ssl

import httpx
import pytest

from plugins.agents.tests.endpoint.played import Stage, program_of
from plugins.agents.tests.endpoint.record import CLIENTS, RECORDED, says
from slime.types import Status

CALLS = '<tool_call>\n{"name": "add", "arguments": {"a": 1,"b":false}}\n</tool_call>\n' * 2
TURNS = {"openai_agents": [3], "pydantic_ai": [2, 2, 3], "smolagents": [1, 2]}
"""Turns of each segment; of the others, a sub-agent's two, twice, and one behind a compaction. smolagents writes
earlier calls as words of its own, and asks for its last answer by another system prompt."""


def varied(body, rng: random.Random):
    """The same request, as another client would write it down."""
    body, ids = copy.deepcopy(body), {}

    def minted(name: str) -> str:
        if rng.random() < 0.5:
            return name
        return ids.setdefault(name, f"toolu_{rng.randrange(10**9)}")

    for message in body["messages"]:
        if "reasoning_content" in message and rng.random() < 0.5:
            del message["reasoning_content"]
        if message["role"] == "assistant" and "tool_calls" in message and rng.random() < 0.5:
            message["function_call"] = None
        for call in message.get("tool_calls") or ():
            arguments = json.loads(call["function"]["arguments"])
            arguments = dict(rng.sample(list(arguments.items()), len(arguments)))
            call["function"]["arguments"] = json.dumps(arguments, indent=rng.choice((None, 1)))
        content = message.get("content")
        if isinstance(content, str) and rng.random() < 0.3:
            message["content"] = rng.choice(
                [f"{content}\n" if message["role"] == "assistant" else content, [{"type": "text", "text": content}]]
            )
        if isinstance(content, list) and rng.random() < 0.5:
            message["content"] = [part for part in content if part.get("type") != "thinking"]
    text = json.dumps(body)
    for name in {part for message in body["messages"] for part in _ids(message)}:
        text = text.replace(name, minted(name))
    body = json.loads(text)
    body["temperature"], body["stream"] = rng.random(), rng.random() < 0.5
    return body


def _ids(message):
    parts = message["content"] if isinstance(message.get("content"), list) else []
    return [call["id"] for call in message.get("tool_calls") or ()] + [
        part["id"] for part in parts if part.get("type") == "tool_use"
    ]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("count", [10, pytest.param(170, marks=pytest.mark.slow)])
def test_replayed_traces_give_the_right_tree(tmp_path, client, count):
    """One after another, of one program, as in a run."""
    sent, rng = json.loads((RECORDED / f"{client}.json").read_text()), random.Random(5)
    unused = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # else each client reads the authorities: 40 ms

    async def replay(task, endpoint):
        async with httpx.AsyncClient(timeout=60, verify=unused) as http:
            for one in sent:
                url = f"{endpoint.url}/{one['path']}"

                def tell(number: int, headers, one=one, url=url):
                    again = {"x-stainless-retry-count": str(number)} if number and rng.random() < 0.5 else headers
                    return http.post(url, json=varied(one["body"], rng), headers=again)

                first, answers = rng.random() < 0.5, []
                if first:
                    answers.append(await tell(0, one["headers"]))
                tries = range(first, rng.choice((1, 1, 2, 3)))  # at one moment: none of them says that it is the first
                answers += await asyncio.gather(*(tell(number, {}) for number in tries))
                assert {answer.status_code for answer in answers} <= {200}, [answer.text for answer in answers]

    def check(sample):
        assert sample.status is Status.COMPLETED, sample.verdict
        stage.check(sample)
        assert sample.metadata["requests"] == len(sent) == len(stage.engine.requests), "a retry is sampled once"
        trained = stage.trained(sample)
        assert sorted(text.count("<|im_end|>") for text in trained) == TURNS.get(client, [1, 2, 2, 3])
        assert sample.metadata["forks"] == len(trained) - 1
        assert any(CALLS.strip() in text for text in trained)
        thoughts, turns = ([text.count(word) for text in trained] for word in ("<think>", "<|im_end|>"))
        assert thoughts == turns, "thinking that the client left out is trained on, where it was sampled"

    async def replay_all():
        for _ in range(count):
            stage.engine.requests = []
            check(await stage.make(program))

    stage, program = Stage(tmp_path, says), program_of(replay)
    asyncio.run(replay_all())


def test_the_clients_said_what_is_replayed():
    """All of them send the whole history; those of OpenAI and Anthropic say whether they repeat themselves."""
    for client in CLIENTS:
        sent = json.loads((RECORDED / f"{client}.json").read_text())
        assert len(sent) == sum(TURNS.get(client, [1, 2, 2, 3]))
        assert {one["headers"].get("x-stainless-retry-count") for one in sent} == {"0"}
