"""What a client makes of an answer is that answer: with a stop string put back, trimmed, renamed, without thinking."""

from __future__ import annotations

import httpx
import pytest

from plugins.agents.tests.endpoint.played import END, Stage
from plugins.agents.tests.endpoint.test_bounds import play
from slime.types import Status

THOUGHT = "<think>\nwhy\n</think>\n\n"
ECHOES = {
    "put back": lambda said, stop: said + stop,
    "put back behind a line break": lambda said, stop: f"{said}\n{stop}",
    "put back and a line break": lambda said, stop: f"{said}{stop}\n",
    "put back where it was trimmed": lambda said, stop: f"{said}{stop.strip()}",
    "with its thinking": lambda said, stop: f"{THOUGHT}{said}{stop}",
    "as it was": lambda said, stop: said,
    "trimmed": lambda said, stop: f"  {said.strip()}\n",
    "as parts": lambda said, stop: [{"type": "text", "text": said + stop}],
}
STOPS = {"hit": ["</code>"], "of several": ["Observation:", "</code>", "Calling tools:"],
         "with white space": ["</code>\n"], "not hit": ["<end>"], "line break": ["\nObservation:"]}  # fmt: skip


@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.parametrize("stop", STOPS)
def test_an_answer_with_its_stop_string_put_back_is_that_answer(tmp_path, echo, stop):
    numbers = iter(range(9))
    stage = Stage(tmp_path, lambda _: f"{THOUGHT}<code>\nadd({next(numbers)})\n</code>\nObservation: and more{END}")

    async def agent(task, endpoint):
        async with httpx.AsyncClient(timeout=60) as client:
            messages = [{"role": "user", "content": "go"}]
            for _ in range(3):
                body = {"messages": messages, "stop": STOPS[stop]}
                answer = await client.post(f"{endpoint.url}/chat/completions", json=body)
                said = answer.json()["choices"][0]["message"]["content"]
                content = ECHOES[echo](said, STOPS[stop][-1 if stop == "not hit" else len(STOPS[stop]) // 2])
                messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "Observation: 3"}]

    sample = stage.play(agent)
    assert sample.status is Status.COMPLETED, sample.verdict
    stage.check(sample)
    assert (sample.metadata["requests"], sample.metadata["forks"]) == (3, 0)


def test_what_is_no_stop_string_of_the_request_is_a_change(tmp_path):
    stage = Stage(tmp_path, lambda _: f"one{END}")

    async def agent(task, endpoint):
        async with httpx.AsyncClient(timeout=60) as client:
            for more in ("</code>", "", "END"):
                messages = [{"role": "user", "content": "go"}]
                body = {"messages": messages, "stop": ["END"]}
                await client.post(f"{endpoint.url}/chat/completions", json=body)
                said = {"role": "assistant", "content": f"one{more}"}
                body["messages"] = [*messages, said, {"role": "user", "content": f"and {more}"}]
                await client.post(f"{endpoint.url}/chat/completions", json=body)

    sample = stage.play(agent)
    assert (sample.metadata["requests"], sample.metadata["forks"]) == (4, 1)


TOOL = {"name": "add", "description": "Add.", "input_schema": {"type": "object"}}
CALL = f'<tool_call>\n{{"name": "add", "arguments": {{"a": 1}}}}\n</tool_call>{END}'


def test_a_thread_goes_on_behind_the_answer_that_it_names(tmp_path):
    """With the result alone; twice behind one answer; with another system prompt; and behind what there is not."""
    say = iter([CALL, f"It is 3.{END}", f"Sure.{END}", f"No.{END}", f"Yes.{END}"])
    stage = Stage(tmp_path, lambda _: next(say))

    async def agent(task, endpoint):
        async with httpx.AsyncClient(timeout=60) as client:

            async def ask(content, previous=None, **more):
                thread = {"type": "continue", "previous_message_id": previous} if previous else {"type": "create"}
                body = {"thread": thread, "messages": [{"role": "user", "content": content}], "max_tokens": 500, **more}
                headers = {"x-stainless-retry-count": "0"}
                return await client.post(f"{endpoint.url}/messages?beta=true", json=body, headers=headers)

            first = (await ask("Add 1 and 2.", system="You add.", tools=[TOOL])).json()
            [call] = [block for block in first["content"] if block["type"] == "tool_use"]
            result = [{"type": "tool_result", "tool_use_id": call["id"], "content": "3"}]
            second = (await ask(result, first["id"])).json()
            assert (await ask("sure?", second["id"], tools=[TOOL])).status_code == 200
            assert (await ask("really?", second["id"], system="You add.")).status_code == 200
            assert (await ask("other?", second["id"], system="You count.")).status_code == 200
            for previous in ("msg_none", call["id"], "msg_"):
                refused = await ask(result, previous)
                assert refused.status_code == 400
                assert previous.removeprefix("msg_") in refused.json()["error"]["message"]
            assert (await ask(result)).status_code == 400, "a result without its question"

    sample = stage.play(agent)
    assert sample.status is Status.COMPLETED, sample.verdict
    stage.check(sample)
    assert (sample.metadata["requests"], sample.metadata["forks"]) == (5, 1)
    texts = [stage.tokenizer.decode(request) for request in stage.engine.requests]
    assert all("Add 1 and 2." in text for text in texts)
    assert ["You add." in text for text in texts] == [True] * 4 + [False]


def test_a_result_without_its_question_is_refused_beside_one_that_has_it(tmp_path):
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    asked = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "add", "input": {}}]}

    async def agent(endpoint, client):
        for before, name, status in (([], "1", 400), (asked[:1], "1", 400), (asked, "2", 400), (asked, "1", 200)):
            result = {"role": "tool", "tool_call_id": name, "content": "3"}
            answer = await client.post(f"{endpoint.url}/chat/completions", json={"messages": [*before, result]})
            assert answer.status_code == status, answer.text
            parts = [{"type": "tool_result", "tool_use_id": name, "content": "3"}]
            messages = [*(before[:1] and [*before[:1], *[use][: len(before) - 1]]), {"role": "user", "content": parts}]
            answer = await client.post(f"{endpoint.url}/messages", json={"messages": messages})
            assert answer.status_code == status, answer.text

    play(tmp_path, agent)


def test_calls_that_a_client_writes_as_words_are_the_calls(tmp_path):
    """As smolagents does; words for another call, or that cannot be read, are a change."""
    words = "I add.\nCalling tools:\n[{'id': 'x', 'type': 'function', 'function': {'name': 'add', 'arguments': %s}}]"
    cases = [(words % "{'a': 1}", 0), (words % "'{\"a\": 1}'", 0), (words % "{'a': 2}", 1),
    ("I add.\nCalling tools:\n[{]", 1),
             (words % "__import__", 1), ("I add.\nCalling tools:\n[{'id': 'x'}]", 1)]  # fmt: skip
    for number, (text, forks) in enumerate(cases):
        say = iter([f"I add.\n{CALL}", f"It is 3.{END}"])
        folder = tmp_path / str(number)
        folder.mkdir()
        stage = Stage(folder, lambda _, say=say: next(say))

        async def agent(task, endpoint, text=text):
            async with httpx.AsyncClient(timeout=60) as client:
                function = {"name": "add", "description": "Add.", "parameters": {"type": "object"}}
                body = {
                    "messages": [{"role": "user", "content": "x"}],
                    "tools": [{"type": "function", "function": function}],
                }
                await client.post(f"{endpoint.url}/chat/completions", json=body)
                body["messages"] += [
                    {"role": "assistant", "content": text},
                    {"role": "user", "content": "Observation:\n3"},
                ]
                await client.post(f"{endpoint.url}/chat/completions", json=body)

        sample = stage.play(agent)
        assert (sample.metadata["requests"], sample.metadata["forks"]) == (2, forks), text
