"""The Responses API by OpenAI's own client and its types."""

from __future__ import annotations

import copy
import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent, response_create_params
from pydantic import TypeAdapter

from plugins.agents.tests.endpoint.played import END, Stage, counting
from slime.types import Status
from slime_agents.endpoint.responses_request import RESPONSES

TOOL = {"type": "function", "name": "add", "description": "Add.", "strict": False, "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}}}  # fmt: skip
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1,"b":false}}\n</tool_call>'
TWO_CALLS = f"<think>\nwhy\n</think>\n\nI add.\n{CALL}\n{CALL}{END}"
ORDER = """created in_progress
output_item.added content_part.added reasoning_text.delta reasoning_text.done content_part.done output_item.done
output_item.added content_part.added output_text.delta output_text.done content_part.done output_item.done
output_item.added function_call_arguments.delta function_call_arguments.done output_item.done
completed"""
"""As OpenAI documents it."""


def play(tmp_path, agent, say):
    """An attempt of `agent(responses, client)`, of which every token fits."""
    stage = Stage(tmp_path, say)

    async def asks(task, endpoint):
        async with openai.AsyncOpenAI(base_url=endpoint.url, api_key=endpoint.key, max_retries=0) as client:
            await agent(client.responses, client)

    sample = stage.play(asks)
    assert sample.status is Status.COMPLETED, sample.verdict
    stage.check(sample)
    return stage, sample


def saying(*texts: str):
    said = iter(texts)
    return lambda before: next(said)


def results(answer, text="3"):
    calls = [item for item in answer.output if item.type == "function_call"]
    return [{"type": "function_call_output", "call_id": call.call_id, "output": text} for call in calls]


def as_items(answer):
    return [item.model_dump(exclude_none=True) for item in answer.output]


def stripped(items):
    """As a client sends them that keeps no ids and no thinking."""
    found = [item for item in copy.deepcopy(items) if item["type"] != "reasoning"]
    for item in found:
        item.pop("id"), item.pop("status")
    return found


def interleaved(items):
    calls = [item for item in items if item["type"] == "function_call"]
    pairs = [[call, {"type": "function_call_output", "call_id": call["call_id"], "output": "3"}] for call in calls]
    return [item for item in items if item not in calls] + [item for pair in pairs for item in pair]


def summed_up(items):
    """As one does that keeps what is encrypted of the thinking alone."""
    return [{**item, "content": []} if item["type"] == "reasoning" else item for item in items]


ECHOES = {
    "whole": lambda items: items,
    "without ids": stripped,
    "results behind their calls": interleaved,
    "results behind their calls, without ids": lambda items: interleaved(stripped(items)),
    "by reference": lambda items: [{"type": "item_reference", "id": item["id"]} for item in items],
    "thinking encrypted": summed_up,
    "calls alone": lambda items: [item for item in items if item["type"] == "function_call"],
}


@pytest.mark.parametrize("how", ECHOES)
def test_items_that_come_back_are_an_echo(tmp_path, how):
    async def agent(responses, client):
        common = {"model": "m", "tools": [TOOL], "instructions": "Add.", "include": ["reasoning.encrypted_content"]}
        first = await responses.create(input="1 + 2", **common)
        assert [item.type for item in first.output] == ["reasoning", "message", "function_call", "function_call"]
        assert (first.output_text, first.output[0].content[0].text) == ("I add.", "why")
        assert [json.loads(item.arguments) for item in first.output[2:]] == [{"a": 1, "b": False}] * 2
        echo = ECHOES[how](as_items(first))
        more = [] if "results" in how else results(first)
        history = [{"role": "user", "content": [{"type": "input_text", "text": "1 + 2"}]}, *echo, *more]
        second = await responses.create(input=history, **common)
        assert second.output_text == "It is 3."
        used = second.usage
        assert used.input_tokens + used.output_tokens == used.total_tokens > used.output_tokens > 0
        history += [{"role": "assistant", "content": second.output_text}, {"role": "user", "content": "sure?"}]
        await responses.create(input=history, tool_choice="none", **common)

    stage, sample = play(tmp_path, agent, saying(TWO_CALLS, f"It is 3.{END}", f"Yes.{END}"))
    assert sample.metadata == {"requests": 3, "forks": 0, "ill_formed_calls": 0}
    [text] = stage.trained(sample)
    assert "<think>\nwhy\n</think>" in text
    assert sample.response == "Yes."


def test_a_conversation_goes_on_behind_a_named_answer(tmp_path):
    """It inherits no instructions, and ends where there is no such answer."""

    async def agent(responses, client):
        common = {"model": "m", "tools": [TOOL], "instructions": "Add."}
        first = await responses.create(input="1 + 2", **common)
        second = await responses.create(input=results(first), previous_response_id=first.id, **common)
        kept = await responses.retrieve(second.id)
        assert (kept.output, kept.previous_response_id) == (second.output, first.id)
        hidden = await responses.create(input="x", previous_response_id=second.id, store=False, **common)
        for name in ("resp_0", hidden.id, second.id.replace("resp", "msg")):
            with pytest.raises(openai.BadRequestError) as refused:
                await responses.create(input="x", previous_response_id=name, **common)
            assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")
            with pytest.raises(openai.NotFoundError, match=f"Response with id '{name}' not found"):
                await responses.retrieve(name)
        other = await responses.create(input="y", previous_response_id=second.id, **{**common, "instructions": None})
        await responses.delete(other.id)
        with pytest.raises(openai.NotFoundError):
            await responses.retrieve(other.id)

    stage, sample = play(tmp_path, agent, saying(TWO_CALLS, *(f"{word}{END}" for word in ("a", "b", "c"))))
    assert sample.metadata["forks"] == 1, "other instructions are another conversation"
    first, other = stage.texts(sample)
    assert first.count("Add.") == other.count("Add.") + 1, "one is the tool's description"
    assert "<tool_response>\n3" in other


def test_a_stream_has_the_events_of_an_answer_in_their_order(tmp_path):
    known = TypeAdapter(ResponseStreamEvent)

    async def agent(responses, client):
        raw = await responses.create(model="m", input="x", tools=[TOOL], stream=True)
        events = [event async for event in raw]
        assert [event.type.removeprefix("response.") for event in events] == ORDER.split()
        assert [event.sequence_number for event in events] == list(range(len(events)))
        for event in events:
            known.validate_python(event.model_dump(warnings=False), strict=True)
        whole = await responses.retrieve(events[-1].response.id)
        assert events[-1].response.output == whole.output
        Response.model_validate(whole.model_dump(), strict=True)
        async with responses.stream(model="m", input="y", tools=[TOOL]) as stream:
            final = await stream.get_final_response()
        assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
        async with responses.stream(model="m", input="z", reasoning={"summary": "auto", "effort": "low"}) as stream:
            told = [event.type async for event in stream]
            assert (await stream.get_final_response()).output[0].summary[0].text == "why"
        assert told.count("response.reasoning_summary_text.delta") == 1

    play(tmp_path, agent, lambda before: f"<think>\nwhy\n</think>\n\nI add.\n{CALL}{END}")


@pytest.mark.parametrize("text", ["one two three four five", "<think>\none two three four five"])
def test_an_answer_that_is_cut_is_incomplete(tmp_path, text):
    async def agent(responses, client):
        answer = await responses.create(model="m", input="x", max_output_tokens=3)
        assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert answer.usage.output_tokens == 3
        assert answer.usage.output_tokens_details.reasoning_tokens == (3 if "<think>" in text else 0)
        assert answer.output[-1].status == "incomplete"
        events = [event async for event in await responses.create(
            model="m", input="x", max_output_tokens=3, stream=True)]  # fmt: skip
        assert (events[-1].type, events[-1].response.status) == ("response.incomplete", "incomplete")
        history = [{"role": "user", "content": "x"}, *as_items(answer), {"role": "user", "content": "go on"}]
        assert (await responses.create(model="m", input=history)).status == "completed"

    _, sample = play(tmp_path, agent, lambda before: f"{text}{END}")
    assert sample.metadata["forks"] == 1, "who asks the same for the first time gets an answer of its own"


CALLED = {"type": "function_call", "call_id": "1", "name": "add", "arguments": "{}", "status": "completed"}
REFUSED: dict[str, dict[str, Any]] = {
    "background": {"background": True},
    "conversation": {"conversation": "conv_1"},
    "prompt": {"prompt": {"id": "p"}},
    "context_management": {"context_management": [{"type": "compaction"}]},
    "moderation": {"moderation": {"model": "x"}},
    "top_logprobs": {"top_logprobs": 1},
    "include": {"include": ["message.output_text.logprobs"]},
    "max_output_token": {"max_output_token": 5},
    "messages": {"messages": [{"role": "user", "content": "x"}]},
    "max_output_tokens": {"max_output_tokens": 0},
    "tool_choice": {"tool_choice": {"type": "web_search"}},
    "tools[1]": {"tools": [TOOL, {"type": "web_search"}]},
    "tools[0]": {"tools": [{"type": "custom", "name": "shell"}]},
    "tools[0].defer_loading": {"tools": [{**TOOL, "defer_loading": True}]},
    "input[1].type": {"input": [{"role": "user", "content": "x"}, {"type": "web_search_call", "id": "ws"}]},
    "input[0].type": {"input": [{"type": "compaction", "encrypted_content": "x"}]},
    "input[0].content": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]},
    "input[0].content[0].cut": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "cut": 1}]}]
    },
    "input[0].weight": {"input": [{"role": "user", "content": "x", "weight": 1}]},
    "input[0].namespace": {"input": [{**CALLED, "namespace": "x"}]},
    "text.forma": {"text": {"forma": {}}},
    "input[0]": {"input": [{"role": "robot", "content": "x"}]},
    "input": {"input": None},
}
ODD: list[Any] = [
    [], {}, 1, [[]], [{}], [1], [{"role": []}], [{"type": []}], [{"role": "user", "content": {}}],
    [{"role": "user", "content": [{"type": []}]}], [{"type": "reasoning", "summary": [1]}],
]  # fmt: skip
LIKE_THEM = {
    "background": False, "top_logprobs": 0, "include": ["web_search_call.action.sources"], "max_output_tokens": 9000,
    "tool_choice": {"type": "function", "name": "add"}, "tools": [{**TOOL, "strict": True, "defer_loading": False}],
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}], "truncation": "auto",
    "temperature": 0.3, "top_p": 0.5, "user": "u", "metadata": {"a": "b"}, "service_tier": "auto",
    "prompt_cache_key": "k", "safety_identifier": "s", "parallel_tool_calls": False, "max_tool_calls": 3,
    "text": {"format": {"type": "text"}, "verbosity": "low"}, "reasoning": {"effort": "high", "summary": None},
    "stream_options": {"include_obfuscation": False}, "instructions": None, "previous_response_id": None,
}  # fmt: skip


def test_what_cannot_be_honoured_is_refused_by_name(tmp_path):
    async def agent(responses, client):
        async def ask(more):
            return await client.post("/responses", body={"model": "m", "input": "x", **more}, cast_to=Response)

        for odd in ODD:
            with pytest.raises(openai.BadRequestError):
                await ask({"input": odd})
        for name, more in REFUSED.items():
            with pytest.raises(openai.BadRequestError) as refused:
                await ask(more)
            assert refused.value.param == name, refused.value
        assert "input" in str(refused.value)
        answer = await ask(LIKE_THEM)
        assert (answer.temperature, answer.metadata, answer.truncation) == (0.3, {"a": "b"}, "auto")
        with pytest.raises(openai.BadRequestError, match="Did you mean 'max_output_tokens'"):
            await ask(REFUSED["max_output_token"])
        count = await client.post("/responses/input_tokens", body={"input": "x"}, cast_to=dict[str, Any])
        plain = await responses.create(model="m", input="x")
        assert count == {"object": "response.input_tokens", "input_tokens": plain.usage.input_tokens}

    play(tmp_path, agent, counting())


def test_every_field_of_openai_s_types_is_known():
    fields = set(response_create_params.ResponseCreateParamsBase.__annotations__) | {"stream"}
    assert fields > {"input", "store", "background"}
    assert not fields - RESPONSES.known, "a new release brings fields"


def test_two_apis_share_one_conversation(tmp_path):
    """What one was answered, another one may go on from."""

    async def agent(responses, client):
        first = await responses.create(model="m", input="1 + 2", instructions="Add.", tools=[TOOL])
        call = first.output[-1]
        called = {"id": call.call_id, "type": "function", "function": {"name": "add", "arguments": call.arguments}}
        messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 2"},
                    {"role": "assistant", "content": first.output_text, "tool_calls": [called]},
                    {"role": "tool", "tool_call_id": call.call_id, "content": "3"}]  # fmt: skip
        function = {name: TOOL[name] for name in ("name", "description", "parameters")}
        tools = [{"type": "function", "function": function}]
        await client.chat.completions.create(model="m", messages=messages, tools=tools)

    _, sample = play(tmp_path, agent, saying(f"I add.\n{CALL}{END}", f"3{END}"))
    assert sample.metadata["forks"] == 0
