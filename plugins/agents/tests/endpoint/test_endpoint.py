"""The endpoint with the real client of OpenAI, in this process and as a process of its own."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path

import httpx
import openai
import pytest

from plugins.agents.tests.endpoint.played import AGENTS, END, Stage, counting
from slime.compose.compose import compose
from slime.errors import SlimeError
from slime.types import Status, Verdict
from slime_agents.endpoint import server
from slime_agents.endpoint.options import EndpointOptions, check
from slime_agents.endpoint.program import EndpointProgram

TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}}}}]  # fmt: skip
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1,"b":false}}\n</tool_call>'
PAGE = Path(__file__).parents[4] / "docs/agents.md"


def client(endpoint) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=endpoint.url, api_key=endpoint.key)


async def ask(chat, messages, **more):
    answer = await chat.chat.completions.create(model="any", messages=messages, **more)
    return answer.choices[0].message


def user(text: str):
    return {"role": "user", "content": text}


def test_tools_thinking_and_parallel_calls(tmp_path):
    say = iter([f"<think>\nwhy\n</think>\n\nI add.\n{CALL}\n{CALL}{END}", f"<think>\nso\n</think>\n\nIt is 3.{END}",
                f"It was 3.{END}"])  # fmt: skip
    stage = Stage(tmp_path, lambda before: next(say))

    async def agent(task, endpoint):
        async with client(endpoint) as chat:
            messages = [{"role": "system", "content": "Add."}, user("1 + 2")]
            first = await ask(chat, messages, tools=TOOLS)
            assert (first.content, first.reasoning_content) == ("I add.", "why")
            assert [json.loads(call.function.arguments) for call in first.tool_calls] == [{"a": 1, "b": False}] * 2
            messages.append(first.model_dump(exclude={"reasoning_content"}))
            for call in first.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "3"})
            second = await ask(chat, messages, tools=TOOLS)
            messages += [{"role": "assistant", "content": second.content}, user("sure?")]
            third = await chat.chat.completions.create(model="m", messages=messages, tools=TOOLS, tool_choice="none")
            assert third.choices[0].message.content == "It was 3."
            usage = third.usage
            assert (
                usage.prompt_tokens + usage.completion_tokens
                == usage.total_tokens
                == len(stage.engine.requests[2]) + 10
            )

    sample = stage.play(agent)
    assert sample.status is Status.COMPLETED, sample.verdict
    stage.check(sample)
    [text] = stage.texts(sample)
    assert f"<think>\nwhy\n</think>\n\nI add.\n{CALL}\n{CALL}{END}\n<|im_start|>user\n<tool_response>\n3" in text
    assert "<think>\nso\n</think>" in text, "what was sampled is never rendered again"
    assert sample.metadata == {"requests": 3, "forks": 0, "ill_formed_calls": 0}
    assert sample.response == "It was 3."


def test_a_stream_has_what_an_answer_has(tmp_path):
    stage = Stage(tmp_path, lambda before: f"<think>\nwhy\n</think>\n\nI add.\n{CALL}{END}")

    async def agent(task, endpoint):
        async with client(endpoint) as chat:
            strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
            async with chat.chat.completions.stream(model="m", messages=[user("x")], tools=strict) as stream:
                whole = (await stream.get_final_completion()).choices[0]
            assert (whole.message.content, whole.finish_reason) == ("I add.", "tool_calls")
            assert whole.message.tool_calls[0].function.name == "add"
            chunks = [chunk async for chunk in await chat.chat.completions.create(
                model="m", messages=[user("y")], stream=True, stream_options={"include_usage": True})]  # fmt: skip
            assert chunks[-1].usage.completion_tokens == len(stage.tokenizer.encode(
                f"<think>\nwhy\n</think>\n\nI add.\n{CALL}{END}", add_special_tokens=False))  # fmt: skip

    sample = stage.play(agent)
    assert sample.status is Status.COMPLETED, sample.verdict
    stage.check(sample)


def test_a_stream_begins_before_there_is_an_answer(tmp_path, monkeypatch, caplog):
    """Who leaves it then has heard nothing."""
    monkeypatch.setattr(server, "STREAM_AFTER_S", 0.1)
    heard = asyncio.Event()
    stage = Stage(tmp_path, counting(), over=heard)

    async def agent(task, endpoint):
        async def said(content: str, count: int) -> str:
            body = {"messages": [user(content)], "stream": True}
            found, url = "", f"{endpoint.url}/chat/completions"
            async with httpx.AsyncClient(timeout=100) as raw, raw.stream("POST", url, json=body) as answer:
                async for line in answer.aiter_lines():
                    found += f"{line}\n"
                    if found.count("the model thinks") == 2:
                        heard.set()
                    if found.count("the model thinks") == count:
                        break
            return found

        await said("left", 1)
        whole = await said("heard", 0)
        assert whole.startswith(": the model thinks\n\n: the model thinks")
        assert '"content":"answer 1"' in whole
        assert whole.endswith("data: [DONE]\n\n")

    sample = stage.play(agent)
    assert stage.trained(sample) == [f"answer 1{END}"], sample.verdict
    assert not [record for record in caplog.records if record.name.startswith("aiohttp")]


def test_branches_sub_agents_and_compaction_are_segments(tmp_path):
    stage = Stage(tmp_path, counting())

    async def agent(task, endpoint):
        async with client(endpoint) as chat:
            main = [user("plan")]
            main.append((await ask(chat, main)).model_dump())
            both = await asyncio.gather(*(ask(chat, [*main, user(f"part {n}")]) for n in range(2)))
            helpers = await asyncio.gather(*(ask(chat, [user("help")]) for n in range(2)))
            assert helpers[0].content != helpers[1].content, "who asks for the first time gets an answer of its own"
            assert both[0].content != both[1].content
            await ask(chat, [user("summary: planned")])

    sample = stage.play(agent)
    stage.check(sample)
    assert len(sample.segments) == 5
    assert sorted(text.count("answer") for text in stage.trained(sample)) == [1, 1, 1, 1, 2]
    assert sample.metadata["forks"] == 3


def test_a_retry_gets_the_answer_that_it_missed(tmp_path):
    stage = Stage(tmp_path, counting(), delay_s=1.2)

    async def agent(task, endpoint):
        slow = openai.AsyncOpenAI(base_url=endpoint.url, api_key=endpoint.key, timeout=1.0, max_retries=10)
        async with slow as chat:
            first = await ask(chat, [user("x")])
        async with httpx.AsyncClient(timeout=100) as raw:
            headers = {"Authorization": f"Bearer {endpoint.key}"}
            body = {"messages": [user("x")]}
            for _ in range(2):  # who says nothing of repeating is taken to repeat
                answer = (await raw.post(f"{endpoint.url}/chat/completions", json=body, headers=headers)).json()
                assert answer["choices"][0]["message"]["content"] == first.content

    sample = stage.play(agent)
    stage.check(sample)
    assert len(stage.engine.requests) == 1
    assert sample.metadata["requests"] == 1


def test_what_nobody_heard_is_not_trained_on(tmp_path):
    gone = asyncio.Event()
    stage = Stage(tmp_path, counting(), over=gone)

    async def agent(task, endpoint):
        async with client(endpoint) as hasty, client(endpoint) as patient:
            asking = asyncio.create_task(ask(hasty, [user("x")]))
            while not stage.engine.requests:
                await asyncio.sleep(0.01)
            asking.cancel()  # as its time limit would end it, which closes the connection
            with pytest.raises(asyncio.CancelledError):
                await asking
            gone.set()
            await ask(patient, [user("y")])
            await asyncio.sleep(0.2)

    sample = stage.play(agent)
    assert stage.trained(sample) == [f"answer 1{END}"]
    assert sample.response == "answer 1"


def test_max_tokens_and_stop_are_honoured(tmp_path):
    stage = Stage(tmp_path, lambda before: f"one two three{END}")

    async def agent(task, endpoint):
        async with client(endpoint) as chat:
            short = await chat.chat.completions.create(model="m", messages=[user("x")], max_tokens=4)
            assert (short.choices[0].message.content, short.choices[0].finish_reason) == ("one", "length")
            stopped = await chat.chat.completions.create(model="m", messages=[user("x")], stop=[" th"])
            assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("one two", "stop")
            messages = [user("x"), {"role": "assistant", "content": "one two"}, user("go on")]
            await ask(chat, messages)

    sample = stage.play(agent)
    stage.check(sample)
    assert "one two th\n" not in stage.texts(sample)[0]
    assert any(f"one two th{END}\n<|im_start|>user\ngo on" in text for text in stage.texts(sample))


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"n": 2}, "n", None),
        ({"response_format": {"type": "grammar"}}, "response_format", None),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
         "messages[0].content", None),
        ({"messages": [{"role": "critic", "content": "x"}]}, "messages[0]", None),
        ({"messages": []}, "messages", None),
        ({"messages": [user("x"), {"role": "assistant", "content": "so"}]}, "messages", None),
        ({"max_tokens": 0}, "max_tokens", None),
        ({"messages": [user("x" * 21_000)]}, "messages", "context_length_exceeded"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_named(tmp_path, body, param, code):
    stage = Stage(tmp_path, counting())

    async def agent(task, endpoint):
        async with client(endpoint) as chat:
            await ask(chat, [user("first")])
            with pytest.raises(openai.BadRequestError) as found:
                await chat.chat.completions.create(**{"model": "m", "messages": [user("y")], **body})
            assert (found.value.param, found.value.code) == (param, code)

    sample = stage.play(agent)
    assert sample.status is Status.COMPLETED, sample.verdict
    assert stage.trained(sample) == [f"answer 0{END}"]


def test_a_key_is_of_one_attempt_and_ends_with_it(tmp_path):
    stage, seen, over = Stage(tmp_path, counting()), [], asyncio.Event()

    async def agent(task, endpoint):
        seen.append(endpoint)
        is_second = len(seen) == 2
        if is_second:  # the first attempt keeps the server
            await over.wait()
        async with client(endpoint) as chat:
            await ask(chat, [user("x")])
            assert [model.id for model in (await chat.models.list()).data] == ["policy"]
        async with httpx.AsyncClient() as raw:
            root, body = endpoint.anthropic_url.rpartition("/")[0], {"messages": [user("x")]}
            answer = await raw.post(f"{root}/v1/chat/completions", json=body, headers={"x-api-key": endpoint.key})
            assert answer.status_code == 200
            assert (await raw.post(f"{root}/wrong/v1/chat/completions", json=body)).status_code == 401
            if is_second:
                first = f"{seen[0].url}/chat/completions"
                assert (await raw.post(first, json=body)).status_code == 410
                return Verdict.of(0.5)
            return None

    async def both():
        program = EndpointProgram(EndpointOptions(path=f"{Stage.__module__}:now"))
        first = asyncio.create_task(stage.make(program))
        second = asyncio.create_task(stage.make(program))
        sample = await first
        assert sample.status is Status.COMPLETED, sample.verdict
        over.set()
        return await second

    AGENTS["now"] = agent
    sample = asyncio.run(both())
    assert (sample.status, sample.verdict) == (Status.COMPLETED, Verdict.of(0.5))


def test_an_engine_that_fails_ends_the_run_and_not_the_attempt(tmp_path):
    stage = Stage(tmp_path, lambda before: SlimeError("the engine is gone", todo="Look."))

    async def agent(task, endpoint):
        async with client(endpoint) as chat:
            await ask(chat, [user("x")])

    with pytest.raises(SlimeError, match="the engine is gone"):
        stage.play(agent)


def test_the_agent_is_checked_before_anything_starts(tmp_path, monkeypatch):
    words = ["+model=glm4-tiny", "+cluster=local", "rollout.program.name=endpoint"]
    with pytest.raises(SlimeError, match="no agent program is named"):
        compose(words)
    with pytest.raises(SlimeError, match="there is no file"):
        compose([*words, "rollout.program.path=nowhere.py:run"])
    with pytest.raises(SlimeError, match="two agent programs are named"):
        compose([*words, "rollout.program.options.path=a.py:run", "rollout.program.options.command=b"])
    (tmp_path / "mine.py").write_text("def plain(task, endpoint): ...\nasync def short(task): ...")
    with pytest.raises(SlimeError, match=r"nothing can await .* Write `async def plain\(task, endpoint\)`"):
        compose([*words, f"rollout.program.path={tmp_path}/mine.py:plain"])
    with pytest.raises(SlimeError, match="cannot be called with task, endpoint: too many positional arguments"):
        compose([*words, f"rollout.program.path={tmp_path}/mine.py:short"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_agent.py").touch()
    program = compose([*words[:2], "rollout.program.command=python my_agent.py"]).rollout.program
    assert (program.name, program.options["command"]) == ("endpoint", "python my_agent.py")


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("python my_agnt.py --slow", "there is no 'my_agnt.py'. Did you mean 'my_agent.py'?"),
        ("pyton my_agent.py", "there is no program 'pyton'. Did you mean 'python'?"),
        ("python 'my_agent.py", "No closing quotation"),
        ("my_agent.py", "there is no program 'my_agent.py'. Install it, or name its path."),
        ("python -u my_agent.py nosuch.py", ""),
        ("A=b exec python -m json.tool nosuch.py", ""),
        ("cd /nowhere && python nosuch.py", ""),
    ],
)
def test_what_a_command_runs_must_be_here(tmp_path, monkeypatch, command, fault):
    """As far as a line of the shell says it without running."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_agent.py").touch()
    with pytest.raises(SlimeError, match=re.escape(fault)) if fault else nullcontext():
        check(EndpointOptions(command=command))


def test_the_page_s_examples_work(tmp_path, monkeypatch):
    """The agent, the function and the command that docs/agents.md shows."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_agent.py").write_text(blocks[0])
    (tmp_path / "my_function.py").write_text(blocks[1])
    [words] = re.findall(r"^    slime (.*)$", PAGE.read_text().replace("\\\n", " "), re.M)
    assert compose(shlex.split(words)).rollout.program.options["command"] == "python my_agent.py"
    stage = Stage(tmp_path, counting())
    options = [EndpointOptions(command=f"{sys.executable} {tmp_path}/my_agent.py"),
               EndpointOptions(path=f"{tmp_path}/my_function.py:run")]  # fmt: skip
    samples = [asyncio.run(stage.make(EndpointProgram(each))) for each in options]
    assert [sample.response for sample in samples] == ["answer 0", "answer 2"], samples[0].verdict
    assert [len(sample.segments) for sample in samples] == [1, 1]
