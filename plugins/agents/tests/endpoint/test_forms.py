"""Answers that a client wants in a form: said in words, sampled freely, and graded where a program fails by them."""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel, ValidationError

from plugins.agents.tests.endpoint.played import END, Stage
from slime.errors import SlimeError
from slime.types import Status, Verdict, VerdictKind
from slime_agents.endpoint.fields import tool_choice
from slime_agents.endpoint.forms import as_the_run_wants, form_in, is_missed
from slime_agents.endpoint.options import EndpointOptions, check
from slime_agents.endpoint.program import EndpointProgram
from slime_agents.endpoint.said import Answer, Call, Form, RefusedRequestError, Request, Said


class City(BaseModel):
    """Where people live."""

    city: str
    people: int


RIGHT, WRONG = '{"city": "Paris", "people": 2}', '{"city": "Paris"}'
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALL = '<tool_call>\n{"name": "add", "arguments": %s}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": SCHEMA}}


def play(tmp_path, say, agent, **options: Any):
    said = iter(say)
    stage = Stage(tmp_path, lambda before: f"{next(said)}{END}")

    async def asks(task, endpoint):
        async with openai.AsyncOpenAI(base_url=endpoint.url, api_key=endpoint.key, max_retries=0) as client:
            return await agent(client, endpoint)

    return stage, stage.play(asks, **options)


def user(text: str = "Where?") -> dict[str, str]:
    return {"role": "user", "content": text}


async def by_chat(client, messages):
    message = (await client.chat.completions.parse(
        model="m", messages=messages, response_format=City)).choices[0].message  # fmt: skip
    return message.parsed, {"role": "assistant", "content": message.content}


async def by_responses(client, messages):
    answer = await client.responses.parse(model="m", input=messages, text_format=City)
    return answer.output_parsed, {"role": "assistant", "content": answer.output_text}


@pytest.mark.parametrize("parse", [by_chat, by_responses])
@pytest.mark.parametrize("first", [[], [{"role": "system", "content": "Be right."}]])
def test_a_form_is_said_once_and_the_conversation_goes_on(tmp_path, parse, first):
    async def agent(client, endpoint):
        messages = [*first, user()]
        for _ in range(3):
            found, echo = await parse(client, messages)
            assert found == City(city="Paris", people=2)
            messages += [echo, user("Again.")]

    stage, sample = play(tmp_path, [RIGHT] * 3, agent)
    assert sample.status is Status.COMPLETED, sample.verdict
    stage.check(sample)
    assert sample.metadata == {"requests": 3, "forks": 0, "ill_formed_calls": 0, "missed_forms": 0}
    [text] = stage.texts(sample)
    assert text.count('"required": ["city", "people"]') == 1
    assert ("Be right.\n\nAnswer with JSON" if first else "Where?\n\nAnswer with JSON") in text
    assert text.count(RIGHT) == 3


def test_anthropic_s_two_fields_say_the_same(tmp_path):
    schema = {"type": "json_schema", "schema": SCHEMA}

    async def agent(client, endpoint):
        async with httpx.AsyncClient(headers={"x-api-key": endpoint.key}) as http:
            for field in ({"output_format": schema}, {"output_config": {"format": schema, "effort": "low"}}):
                body = {"max_tokens": 900, "messages": [user()], **field}
                answer = await http.post(f"{endpoint.url}/messages", json=body)
                assert answer.json()["content"][0]["text"] == '{"a": 1}', answer.text

    stage, sample = play(tmp_path, ['{"a": 1}'], agent)
    assert sample.metadata["requests"] == 1, "the second is the first, asked again"
    assert json.dumps(SCHEMA) in stage.texts(sample)[0]


def test_a_run_may_leave_forms_unsaid_or_refuse_them(tmp_path):
    async def parsed(client, endpoint):
        assert (await by_chat(client, [user()]))[0].people == 2

    stage, sample = play(tmp_path, [RIGHT], parsed, structured="unsaid")
    assert "Answer with JSON" not in stage.texts(sample)[0]

    async def refused(client, endpoint):
        plain = {"type": "text"}
        await client.chat.completions.create(model="m", messages=[user()], response_format=plain)
        for param, ask in (("response_format", by_chat), ("text.format", by_responses)):
            with pytest.raises(openai.BadRequestError, match=r"program\.options\.structured") as error:
                await ask(client, [user()])
            assert error.value.param == param

    _, sample = play(tmp_path, ["so"], refused, structured="refuse")
    assert sample.status is Status.COMPLETED, sample.verdict
    for name in ("word", "ignore"):
        with pytest.raises(SlimeError, match="Did you mean 'words'" if name == "word" else "words, unsaid, refuse"):
            check(EndpointOptions(command="x", structured=name))


async def fails(client, endpoint):
    assert (await by_chat(client, [user()]))[0]


async def asks_again(client, endpoint):
    """As instructor does, with what was wrong."""
    messages = [user()]
    for _ in range(2):
        answer = await client.chat.completions.create(
            model="m", messages=messages, response_format={"type": "json_object"}
        )
        text = answer.choices[0].message.content
        try:
            return City.model_validate_json(text) and None
        except ValidationError as error:
            messages += [{"role": "assistant", "content": text}, user(f"Wrong: {error.error_count()}")]
    raise RuntimeError("never right")


async def breaks_after(client, endpoint):
    await asks_again(client, endpoint)
    raise RuntimeError("a fault of its own")


async def reads(client, endpoint):
    """As dspy does, which says in words alone what the JSON is to have."""
    answer = await client.chat.completions.create(model="m", messages=[user()], response_format={"type": "json_object"})
    City.model_validate_json(answer.choices[0].message.content)
    raise RuntimeError("a fault of its own")


async def breaks(client, endpoint):
    await client.chat.completions.create(model="m", messages=[user()])
    raise RuntimeError("a fault of its own")


async def calls(client, endpoint):
    answer = await client.chat.completions.create(model="m", messages=[user()], tools=[TOOL])
    json.loads(answer.choices[0].message.tool_calls[0].function.arguments)["a"] + 1


async def demands(client, endpoint):
    for choice in ("required", {"type": "function", "function": {"name": "add"}}):
        answer = await client.chat.completions.create(model="m", messages=[user()], tools=[TOOL], tool_choice=choice)
        assert answer.choices[0].message.tool_calls


async def judges_itself(client, endpoint):
    async with httpx.AsyncClient() as http:
        await http.post(f"{endpoint.anthropic_url}/verdict", json={"reward": -1})
    await fails(client, endpoint)


@pytest.mark.parametrize(
    ("agent", "said", "value"),
    [
        (fails, [RIGHT], None),
        (fails, [WRONG], 0.0),
        (fails, ["Paris has 2"], 0.0),
        (fails, [f"```json\n{RIGHT}\n```"], 0.0),
        (fails, ["<think>\nPar"], 0.0),
        (asks_again, ["Paris", RIGHT], None),
        (asks_again, [RIGHT], None),
        (asks_again, ["Paris", "two"], 0.0),
        (breaks_after, ["Paris", RIGHT], "error"),
        (breaks_after, [RIGHT], "error"),
        (reads, [WRONG], 0.0),
        (reads, [RIGHT], "error"),
        (breaks, ["Paris"], "error"),
        (calls, [CALL % '{"a": 1}'], None),
        (calls, [CALL % '{"b": 1}'], 0.0),
        (calls, [CALL % '{"a": "x"}'], 0.0),
        (calls, ["no call"], "error"),
        (demands, [CALL % '{"a": 1}'] * 2, None),
        (demands, ["no call"], 0.0),
        (judges_itself, [WRONG], -1.0),
        (judges_itself, [RIGHT], -1.0),
    ],
)
def test_a_program_that_an_answer_s_form_broke_has_a_reward(tmp_path, agent, said, value):
    """0, or what it said of itself; None: the run's reward judges it. A fault of its own has none."""
    stage, sample = play(tmp_path, said, agent)
    if value == "error":
        assert sample.verdict.kind is VerdictKind.ERROR
        return
    assert (sample.status, sample.verdict) == (Status.COMPLETED, None if value is None else Verdict.of(value))
    stage.check(sample)


PROGRAM = """
import json, os, sys
from openai import OpenAI
answer = OpenAI().chat.completions.create(
    model="m", messages=[{"role": "user", "content": "x"}], response_format={"type": "json_object"})
"""


@pytest.mark.parametrize(
    ("end", "said", "value"),
    [
        ("json.loads(answer.choices[0].message.content)", "Paris", 0.0),
        ("json.loads(answer.choices[0].message.content)", RIGHT, None),
        ("raise type('AdapterParseError', (Exception,), {})('not so')", RIGHT, 0.0),
        ("raise KeyError('a fault of its own')", RIGHT, "error"),
        ("os.kill(os.getpid(), 9)", "Paris", "error"),
        ("sys.exit('a fault of its own')", RIGHT, "error"),
    ],
)
def test_a_command_that_fails_so_has_a_reward_and_one_that_is_killed_has_none(tmp_path, end, said, value):
    (tmp_path / "agent.py").write_text(textwrap.dedent(PROGRAM) + end)
    stage = Stage(tmp_path, lambda before: f"{said}{END}")
    program = EndpointProgram(EndpointOptions(command=f"{sys.executable} {tmp_path}/agent.py"))
    sample = asyncio.run(stage.make(program))
    found = sample.verdict and (sample.verdict.value if sample.verdict.value is not None else sample.verdict.kind.value)
    assert found == value, sample.verdict


def request_of(form: Form | None, said: Said, tools: Any = ()) -> Request:
    return Request((said,), tools, None, (), may_call=True, is_streamed=False, wants_usage=False, model="", form=form)


def answer_of(text: str, *calls: Call) -> Answer:
    return Answer("0", Said("assistant", text, calls), "stop", None, 1, 1)


FORM = form_in({"type": "json_schema", "json_schema": {"name": "n", "description": "d", "schema": SCHEMA}}, "x")
ANY = form_in({"type": "json_object"}, "x")
ODD, AWAY, BROKEN = (Form(schema, "", "x") for schema in (
    {"type": "nothing known"}, {"$ref": "http://localhost:1/x"}, {"pattern": "("}))  # fmt: skip


@pytest.mark.parametrize(
    ("form", "text", "fits"),
    [
        (FORM, '{"a": 1}', True), (FORM, ' {"a": 1, "b": 2}\n', True), (FORM, '{"a": 1.5}', False),
        (FORM, "[1]", False), (FORM, '{"a": 1} so', False), (FORM, "", False), (FORM, "[" * 9999, False),
        (FORM, '{"a": 18446744073709551616}', True), (ANY, "{}", True), (ANY, "[]", False), (ANY, "null", False),
        (ANY, '{"a": NaN}', False), (ODD, "1", True), (ODD, "1 so", False), (AWAY, "1", True), (BROKEN, '"x"', True),
        (None, "anything", True),
    ],
)  # fmt: skip
def test_what_fits_a_form(form, text, fits):
    assert is_missed(request_of(form, Said("user", "x")), answer_of(text)) is not fits


@pytest.mark.parametrize(
    ("choice", "tool"),
    [
        ("required", "*"), ({"type": "any"}, "*"), ({"type": "tool", "name": "add"}, "add"), ("auto", ""), (None, ""),
        ({"type": "function", "name": "add"}, "add"), ({"type": "function", "function": {"name": "add"}}, "add"),
        ("none", ""), ({"type": "auto"}, ""), ({"type": "none"}, ""),
    ],
)  # fmt: skip
def test_a_call_may_be_demanded(choice, tool):
    asked = replace(request_of(None, Said("user", "x"), [TOOL]), demanded=tool_choice(choice, None)[1])
    assert asked.demanded == tool
    assert not is_missed(asked, answer_of("", Call("1", "add", {"a": 1})))
    assert is_missed(asked, answer_of("words")) == bool(tool)
    assert is_missed(asked, answer_of("", Call("1", "other", {}))) == (tool == "add")


def test_an_answer_that_calls_a_tool_owes_no_form():
    asked = request_of(FORM, Said("user", "x"), [TOOL])
    assert not is_missed(asked, answer_of("", Call("1", "add", {"a": 1})))
    assert is_missed(asked, answer_of("", Call("1", "add", {"a": 1}), Call("2", "add", {})))
    assert not is_missed(asked, answer_of("", Call("1", "another", {})))


def test_the_words_say_the_schema_and_stand_first():
    said = [as_the_run_wants(request_of(form, Said(role, "x"), tools), "words").said
            for form, role, tools in ((FORM, "user", []), (ANY, "system", [TOOL]), (ANY, "tool", []))]  # fmt: skip
    assert said[0][0].text == (
        "x\n\nAnswer with JSON of this schema (n: d), without a word or a code fence around it:\n" + json.dumps(SCHEMA)
    )
    assert said[1][0].text.startswith("x\n\nIf you call no tool, answer with one JSON object")
    assert [one.role for one in said[2]] == ["system", "tool"]
    for wrong in ({"type": "grammar"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": 1}}):
        with pytest.raises(RefusedRequestError):
            form_in(wrong, "x")
