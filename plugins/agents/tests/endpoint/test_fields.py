"""Every field of a request is honoured, of no account, of the run, or refused by name: none is dropped in silence."""

from __future__ import annotations

import copy
import importlib

import pytest
import typing_extensions

from slime_agents.endpoint import anthropic_messages, chat_completions, fields, said
from slime_agents.endpoint.said import RefusedRequestError, Repeated, check_results

FUNCTION = {"name": "add", "description": "Add.", "parameters": {"type": "object"}, "strict": True}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
OPENAI = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "name": "add", "content": "3"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
}
ANTHROPIC = {
    "model": "m",
    "max_tokens": 9,
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "t", "signature": "s"},
            {"type": "tool_use", "id": "1", "name": "add", "input": {}, "caller": {"type": "direct"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "3", "is_error": False}]},
    ],
    "tools": [{"name": "add", "input_schema": {"type": "object"}, "strict": True, "allowed_callers": ["direct"]}],
}  # fmt: skip
HARMLESS = {
    chat_completions: [
        {"temperature": 0.2}, {"top_p": 1, "seed": 5}, {"user": "u", "metadata": {"a": "b"}, "store": True}, {"n": 1},
        {"reasoning_effort": "low"}, {"logprobs": False, "top_logprobs": 0}, {"frequency_penalty": 0.0},
        {"tool_choice": "auto"}, {"tool_choice": "required"}, {"tool_choice": None}, {"parallel_tool_calls": False},
        {"tool_choice": {"type": "function", "function": {"name": "add"}}}, {"modalities": ["text"]},
        {"anything": None},
        {"stream_options": {"include_usage": True}}, {"functions": []}, {"verbosity": "medium"}, {"logit_bias": {}},
    ],
    anthropic_messages: [
        {"temperature": 1}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"metadata": {"user_id": "u"}},
        {"service_tier": "auto"}, {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        {"container": None},
        {"tool_choice": {"type": "tool", "name": "add"}}, {"output_config": {"effort": "low"}}, {"mcp_servers": []},
        {"thread": {"type": "create"}}, {"thread": None}, {"context_management": None}, {"stop_sequences": ["x"]},
    ],
}  # fmt: skip
REFUSED = {
    chat_completions: [
        ({"n": 2}, "n", ""), ({"logprobs": True}, "logprobs", ""), ({"logit_bias": {"5": -100}}, "logit_bias", ""),
        ({"frequency_penalty": 0.5}, "frequency_penalty", ""), ({"presence_penalty": -1}, "presence_penalty", ""),
        ({"repetition_penalty": 1.1}, "repetition_penalty", ""), ({"verbosity": "low"}, "verbosity", ""),
        ({"modalities": ["text", "audio"]}, "modalities", ""), ({"audio": {"voice": "x"}}, "audio", ""),
        ({"functions": [FUNCTION]}, "functions", "'tools'"), ({"function_call": {"name": "add"}}, "function_call", ""),
        ({"web_search_options": {"a": 1}}, "web_search_options", ""), ({"min_p": 0.1}, "min_p", ""),
        ({"max_token": 5}, "max_token", "did you mean 'max_tokens'"),
        ({"stop_sequences": ["a"]}, "stop_sequences", "'stop'"),
        ({"temprature": 0.5}, "temprature", ""), ({"tool": []}, "tool", "'tools'"),
        ({"guided_json": {}}, "guided_json", ""),
        ({"prefill": "x"}, "prefill", "'messages'"), ({"chat_template_kwargs": {"enable_thinking": False}},
                                                      "chat_template_kwargs", "data.chat_template_kwargs"),
        ({"thread": {"type": "create"}}, "thread", ""), ({"mcp_servers": [1]}, "mcp_servers", ""),
        ({"stream_options": {"include_usag": True}}, "stream_options.include_usag", "'include_usage'"),
        ({"tool_choice": "requierd"}, "tool_choice", ""),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", ""),
        ({"tool_choice": {"type": "function", "function": {"name": "ad"}}}, "tool_choice", "'add'"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "add"}}}, "tool_choice", ""),
        ({"tool_choice": "required", "tools": []}, "tool_choice", "no tools"), ({"tool_choice": 3}, "tool_choice", ""),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls", ""),
    ],
    anthropic_messages: [
        ({"container": "c"}, "container", ""), ({"mcp_servers": [{"url": "x"}]}, "mcp_servers", ""),
        ({"context_management": {"edits": [1]}}, "context_management", ""),
        ({"compaction": {"type": "x"}}, "compaction", ""),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format", ""),
        ({"stop": ["x"]}, "stop", "'stop_sequences'"),
        ({"output_config": {"task_budget": {"total": 9}}}, "output_config.task_budget", ""), ({"seed": 5}, "seed", ""),
        ({"thread": {"type": "fork"}}, "thread", ""), ({"thread": {"type": "continue"}}, "thread", ""),
        ({"n": 1}, "n", ""),
        ({"thread": {"typ": "create"}}, "thread.typ", ""),
        ({"max_completion_tokens": 5}, "max_completion_tokens", "'max_tokens'"),
        ({"tool_choice": {"type": "tool", "name": "ad"}}, "tool_choice", "'add'"),
        ({"tool_choice": {"type": "x"}}, "tool_choice", ""),
        ({"tool_choice": {"type": "auto", "x": 1}}, "tool_choice.x", ""),
        ({"response_format": {"type": "x"}}, "response_format", ""),
    ],
}  # fmt: skip
WITHIN = {
    chat_completions: [
        (("messages", 1, "name"), "Ann", "messages[1].name"), (("messages", 1, "weight"), 0, "messages[1].weight"),
        (("messages", 2, "prefix"), True, "messages[2].prefix"), (("messages", 2, "refusal"),
        "no", "messages[2].refusal"),
        (("messages", 2, "function_call"), {"name": "x"}, "messages[2].function_call"),
        (("messages", 2, "tool_calls", 0, "custom"), {"name": "x"}, "messages[2].tool_calls.custom"),
        (("messages", 3, "is_error"), True, "messages[3].is_error"), (("messages", 3, "tool_call_id"), "2", None),
        (("messages", 1, "content", 0, "type"), "image_url", "messages[1].content"),
        (("messages", 1, "content", 0, "weight"), 1, "messages[1].content"),
        (("tools", 0, "function", "returns"), {}, "tools[0].function.returns"), (("tools", 0, "x"), 1, "tools[0].x"),
        (("tools", 0, "type"), "custom", "tools[0].type"),
    ],
    anthropic_messages: [
        (("messages", 0, "name"), "Ann", "messages.0.name"), (("messages", 0, "content", 0, "typ"),
        1, "messages.0.content.0.typ"),
        (("messages", 0, "content", 0, "type"), "document", "messages.0.content"),
        (("messages", 1, "content", 1, "caller"),
        {"type": "code_execution", "tool_id": "x"}, "messages.1.content.1.caller"),
        (("messages", 2, "content", 0, "toolset_name"), "x", "messages.2.content.0.toolset_name"),
        (("messages", 2, "content", 0, "tool_use_id"), "2", None), (("messages", 1, "clear_at"),
        "x", "messages.1.clear_at"),
        (("tools", 0, "input_examples"), [{}], "tools.0.input_examples"), (("tools", 0, "defer_loading"),
        True, "tools.0.defer_loading"),
        (("tools", 0, "allowed_callers"), ["code_execution"], "tools.0.allowed_callers"),
        (("tools", 0, "type"), "bash_20250124", "tools.0.type"),
    ],
}  # fmt: skip
BODIES = {chat_completions: OPENAI, anthropic_messages: ANTHROPIC}


def cases(of):
    """All of both APIs, each with what it is about as its name."""
    return [
        pytest.param(
            dialect, *(case if isinstance(case, tuple) else (case,)), id=f"{dialect.__name__[-8:]}-{case!r:.60}"
        )
        for dialect, some in of.items()
        for case in some
    ]


@pytest.mark.parametrize(("dialect", "more"), cases(HARMLESS))
def test_what_is_honoured_or_of_no_account_is_answered(dialect, more):
    assert dialect.read({**copy.deepcopy(BODIES[dialect]), **more}, Repeated()).said


@pytest.mark.parametrize(("dialect", "more", "param", "said"), cases(REFUSED))
def test_what_would_change_the_question_is_refused_by_name(dialect, more, param, said):
    with pytest.raises(RefusedRequestError) as found:
        dialect.read({**copy.deepcopy(BODIES[dialect]), **more}, Repeated())
    assert found.value.param == param
    assert said in found.value.message


@pytest.mark.parametrize(("dialect", "place", "value", "param"), cases(WITHIN))
def test_what_stands_within_is_refused_too(dialect, place, value, param):
    body = copy.deepcopy(BODIES[dialect])
    inner = body
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    with pytest.raises(RefusedRequestError) as found:
        check_results(dialect.read(body, Repeated()).said)
    assert found.value.param == (param or "messages")


def of_type(path):
    """The fields of a typed dict of a client's package; none where it is not installed."""
    module, _, name = path.rpartition(".")
    return set(typing_extensions.get_type_hints(getattr(importlib.import_module(module), name)))


TYPES = {
    "openai": {
        "chat.completion_create_params.CompletionCreateParamsNonStreaming": fields.COMPLETIONS,
        "chat.completion_create_params.CompletionCreateParamsStreaming": fields.COMPLETIONS,
        "chat.ChatCompletionAssistantMessageParam": fields.COMPLETIONS_ASSISTANT,
        "chat.ChatCompletionUserMessageParam": fields.COMPLETIONS_MESSAGE,
        "chat.ChatCompletionSystemMessageParam": fields.COMPLETIONS_MESSAGE,
        "chat.ChatCompletionDeveloperMessageParam": fields.COMPLETIONS_MESSAGE,
        "chat.ChatCompletionToolMessageParam": fields.COMPLETIONS_RESULT,
        "chat.ChatCompletionFunctionMessageParam": fields.COMPLETIONS_RESULT,
        "chat.ChatCompletionMessageFunctionToolCallParam": fields.COMPLETIONS_CALL,
        "chat.ChatCompletionMessageCustomToolCallParam": fields.COMPLETIONS_CALL,
        "chat.ChatCompletionFunctionToolParam": fields.COMPLETIONS_TOOL,
        "chat.ChatCompletionStreamOptionsParam": fields.STREAM_OPTIONS,
        "chat.ChatCompletionContentPartTextParam": fields.Fields(said.OF_TEXTS),
        "shared_params.FunctionDefinition": fields.FUNCTION,
    },
    "anthropic": {
        "message_create_params.MessageCreateParamsNonStreaming": fields.MESSAGES,
        "message_create_params.MessageCreateParamsStreaming": fields.MESSAGES,
        "message_count_tokens_params.MessageCountTokensParams": fields.MESSAGES,
        "beta.message_create_params.MessageCreateParamsNonStreaming": fields.MESSAGES,
        "beta.message_count_tokens_params.MessageCountTokensParams": fields.MESSAGES,
        "beta.BetaUserMessageParam": fields.MESSAGES_MESSAGE,
        "beta.BetaAssistantMessageParam": fields.MESSAGES_MESSAGE,
        "beta.BetaSystemMessageParam": fields.MESSAGES_MESSAGE,
        "beta.BetaTextBlockParam": fields.BLOCKS["text"],
        "beta.BetaThinkingBlockParam": fields.BLOCKS["thinking"],
        "beta.BetaRedactedThinkingBlockParam": fields.BLOCKS["redacted_thinking"],
        "beta.BetaToolUseBlockParam": fields.BLOCKS["tool_use"],
        "beta.BetaToolResultBlockParam": fields.BLOCKS["tool_result"],
        "beta.BetaToolParam": fields.MESSAGES_TOOL,
        "beta.BetaOutputConfigParam": fields.OUTPUT,
        "beta.beta_thread_continue_params.BetaThreadContinueParams": fields.THREAD,
        "beta.beta_thread_create_params.BetaThreadCreateParams": fields.THREAD,
        "beta.BetaToolChoiceToolParam": fields.CHOICE,
    },
}


@pytest.mark.parametrize("package", TYPES)
def test_every_field_that_the_clients_of_today_have_is_in_a_table(package):
    """A new release of a client may bring fields: this says which."""
    pytest.importorskip(package)
    unknown = {
        path: more
        for path, table in TYPES[package].items()
        if (more := of_type(f"{package}.types.{path}") - table.known)
    }
    assert unknown == {}


def test_a_sampling_that_is_the_run_s_is_told_once(caplog):
    fields._told.clear()
    for _ in range(3):
        chat_completions.read({**OPENAI, "temperature": 0.7}, Repeated())
    assert [record.getMessage() for record in caplog.records] == [
        "Agents ask for temperature=0.7; the run's own configuration is taken instead"
    ]


def places(value, path=()):
    """Every place within a body."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, each in inner:
        yield (*path, step)
        yield from places(each, (*path, step))


FULL = {
    chat_completions: {**OPENAI, "tool_choice": "auto", "stop": ["a"], "stream_options": {"include_usage": True}},
    anthropic_messages: {**ANTHROPIC, "tool_choice": {"type": "auto"}, "stop_sequences": ["a"],
                         "thread": {"type": "create"}, "system": [{"type": "text", "text": "s"}]},
}  # fmt: skip


@pytest.mark.parametrize("dialect", BODIES)
@pytest.mark.parametrize(
    "odd", [None, True, 0, -1.5, "", "x", [], [[]], {}, {"x": {}}, [None], 2**70, "\ufffd"], ids=repr
)
def test_whatever_stands_in_a_field_is_read_or_refused(dialect, odd):
    """Any other exception would be a 500."""
    params = set()
    for place in places(FULL[dialect]):
        body = copy.deepcopy(FULL[dialect])
        inner = body
        for step in place[:-1]:
            inner = inner[step]
        inner[place[-1]] = odd
        try:
            request = dialect.read(body, Repeated())
            check_results(request.said)
            request.prepare()
        except RefusedRequestError as refused:
            params.add(refused.param)
    assert "" not in params, "what is refused is named"
