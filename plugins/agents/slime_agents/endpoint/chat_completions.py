"""OpenAI's chat completions: requests and answers on the wire."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from slime_agents.endpoint import fields
from slime_agents.endpoint.forms import form_in
from slime_agents.endpoint.said import (
    Answer,
    Call,
    RefusedRequestError,
    Repeated,
    Request,
    Said,
    messages_in,
    of_kind,
    positive,
    stops_in,
    text_of,
)
from slime_agents.endpoint.values import dumps

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool",
         "function": "tool"}  # fmt: skip
_OF_ROLE = {"assistant": fields.COMPLETIONS_ASSISTANT, "tool": fields.COMPLETIONS_RESULT}
_FINISH = {"stop_string": "stop"}
KEEP_ALIVE = b": the model thinks\n\n"
"""Event of a stream that has nothing else to say."""


def read(body: Mapping[str, Any], repeated: Repeated) -> Request:
    """Raises RefusedRequestError: a field cannot be honoured."""
    fields.COMPLETIONS.check(body)
    if of_kind(body, "n", int, 1) != 1:
        raise RefusedRequestError("'n' is 1: ask again for another answer", "n")
    if (modalities := of_kind(body, "modalities", list, ["text"])) != ["text"]:
        raise RefusedRequestError(f"'modalities' is {modalities!r:.60}: the model says text alone", "modalities")
    tools = [_tool(tool, f"tools[{n}]") for n, tool in enumerate(of_kind(body, "tools", list, []))]
    options = of_kind(body, "stream_options", dict, {})
    fields.STREAM_OPTIONS.check(options, "stream_options.")
    of_kind(body, "parallel_tool_calls", bool)
    may_call, demanded = fields.tool_choice(body.get("tool_choice"), [tool["function"]["name"] for tool in tools])
    return Request(
        said=tuple(repeated.said(messages_in(body), _said)),
        tools=tools,
        max_tokens=positive(body, "max_completion_tokens") or positive(body, "max_tokens"),
        stop=stops_in(body, "stop"),
        may_call=may_call,
        is_streamed=bool(body.get("stream")),
        wants_usage=bool(options.get("include_usage")),
        model=str(body.get("model", "")),
        form=form_in(of_kind(body, "response_format", dict, {}), "response_format"),
        demanded=demanded,
    )


def _said(message: Any, number: int) -> list[Said]:
    param = f"messages[{number}]"
    if not isinstance(message, dict) or str(message.get("role")) not in ROLES:
        raise RefusedRequestError("not a message with a known role", param)
    role = ROLES[message["role"]]
    _OF_ROLE.get(role, fields.COMPLETIONS_MESSAGE).check(message, f"{param}.")
    text = text_of(message.get("content"), f"{param}.content")
    calls = [_call(call, f"{param}.tool_calls") for call in of_kind(message, "tool_calls", list, [])]
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    thinking = reasoning if isinstance(reasoning, str) else ""
    return [Said(role, text, tuple(calls), thinking, str(message.get("tool_call_id") or ""))]


def _call(call: Any, param: str) -> Call:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RefusedRequestError("not the call of a function", param)
    fields.COMPLETIONS_CALL.check(call, f"{param}.")
    fields.CALLED.check(function, f"{param}.function.")
    return Call.read(str(call.get("id", "")), function["name"], function.get("arguments"))


def _tool(tool: Any, param: str) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RefusedRequestError("not a function: other tools are not supported", param)
    fields.COMPLETIONS_TOOL.check(tool, f"{param}.")
    fields.FUNCTION.check(function, f"{param}.function.")
    return fields.function_tool(function)


def whole(request: Request, answer: Answer) -> bytes:
    said = answer.said
    message: dict[str, Any] = {"role": "assistant", "content": said.text or None if said.calls else said.text}
    if said.reasoning:
        message["reasoning_content"] = said.reasoning
    if said.calls:
        message["tool_calls"] = [_written(call) for call in said.calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(answer)}
    head = _head(request, answer, "chat.completion")
    return dumps({**head, "choices": [choice], "usage": _usage(answer)})


def events(request: Request, answer: Answer) -> Iterator[bytes]:
    """The answer as server-sent events."""
    head = _head(request, answer, "chat.completion.chunk")

    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        return _event({**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]})

    said = answer.said
    yield chunk({"role": "assistant", "content": ""})
    if said.reasoning:
        yield chunk({"reasoning_content": said.reasoning})
    if said.text:
        yield chunk({"content": said.text})
    for number, call in enumerate(said.calls):
        yield chunk({"tool_calls": [{"index": number, **_written(call)}]})
    yield chunk({}, _finish(answer))
    if request.wants_usage:
        yield _event({**head, "choices": [], "usage": _usage(answer)})
    yield b"data: [DONE]\n\n"


def fault(message: str, status: int, param: str | None = None, code: str | None = None) -> bytes:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def fault_event(message: str, status: int) -> bytes:
    return b"data: " + fault(message, status) + b"\n\n"


def _head(request: Request, answer: Answer, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": int(time.time()), "model": request.model}


def _finish(answer: Answer) -> str:
    return _FINISH.get(answer.finish, answer.finish)


def _written(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.json}}


def _usage(answer: Answer) -> dict[str, int]:
    before, sampled = answer.num_before, answer.num_sampled
    return {"prompt_tokens": before, "completion_tokens": sampled, "total_tokens": before + sampled}


def _event(value: Any) -> bytes:
    return b"data: " + dumps(value) + b"\n\n"
