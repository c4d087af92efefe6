"""Anthropic's messages: requests and answers on the wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slime_agents.endpoint import fields
from slime_agents.endpoint.forms import form_in
from slime_agents.endpoint.said import (
    Answer,
    Call,
    Form,
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

_STOP_REASON = {
    "stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "stop_string": "stop_sequence",
}  # fmt: skip
_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 405: "invalid_request_error",
    408: "invalid_request_error", 410: "not_found_error", 413: "request_too_large", 415: "invalid_request_error",
}  # fmt: skip
_THINKING = ("thinking", "redacted_thinking")
SIGNATURE = "slime"
"""Signature of thinking: Anthropic's own are checked by its server, this one by nobody."""


def _event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\ndata: ".encode() + dumps({"type": name, **fields}) + b"\n\n"


KEEP_ALIVE = _event("ping")


def read(body: Mapping[str, Any], repeated: Repeated) -> Request:
    """Raises RefusedRequestError: a field cannot be honoured."""
    fields.MESSAGES.check(body)
    fields.OUTPUT.check(of_kind(body, "output_config", dict, {}), "output_config.")
    tools = [_tool(tool, f"tools.{n}") for n, tool in enumerate(of_kind(body, "tools", list, []))]
    choice = of_kind(body, "tool_choice", dict, {})
    fields.CHOICE.check(choice, "tool_choice.")
    may_call, demanded = fields.tool_choice(choice, [tool["function"]["name"] for tool in tools] or None)
    said = []
    if system := text_of(body.get("system"), "system"):
        said.append(Said("system", system))
    said += repeated.said(messages_in(body), _said)
    return Request(
        said=tuple(said),
        tools=tools,
        max_tokens=positive(body, "max_tokens"),
        stop=stops_in(body, "stop_sequences"),
        may_call=may_call,
        is_streamed=bool(body.get("stream")),
        wants_usage=True,
        model=str(body.get("model", "")),
        previous=_previous(body),
        form=_form(body),
        demanded=demanded,
    )


def _form(body: Mapping[str, Any]) -> Form | None:
    """The form in its two places, an older one and a newer one."""
    for place, name, param in (
        (of_kind(body, "output_config", dict, {}), "format", "output_config.format"),
        (body, "output_format", "output_format"),
    ):
        if found := form_in(of_kind(place, name, dict, {}), param):
            return found
    return None


def _previous(body: Mapping[str, Any]) -> str | None:
    """The id of the answer that a thread goes on behind."""
    thread = of_kind(body, "thread", dict, {})
    fields.THREAD.check(thread, "thread.")
    if thread.get("type", "create") == "create":
        return None
    name = thread.get("previous_message_id")
    if thread["type"] != "continue" or not isinstance(name, str):
        what = 'a thread is {"type": "create"} or {"type": "continue", "previous_message_id": ID}'
        raise RefusedRequestError(what, "thread")
    return name.removeprefix("msg_")


def _said(message: Any, number: int) -> Iterator[Said]:
    """One message, or several where it has results of tools and words."""
    param = f"messages.{number}"
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
        raise RefusedRequestError("not a message of the role user or assistant", param)
    fields.MESSAGES_MESSAGE.check(message, f"{param}.")
    role, content = message["role"], message.get("content")
    if not isinstance(content, list):
        yield Said(role, text_of(content, f"{param}.content"))
        return
    parts = [part if isinstance(part, dict) else {"type": "text", "text": part} for part in content]
    for place, part in enumerate(parts):
        if known := fields.BLOCKS.get(str(part.get("type"))):
            known.check(part, f"{param}.content.{place}.")
    words = [part for part in parts if part.get("type") not in ("tool_use", "tool_result", *_THINKING)]
    for part in parts:
        if part.get("type") == "tool_result":
            text = text_of(part.get("content"), f"{param}.content")
            text = text or ("error" if part.get("is_error") else "")
            yield Said("tool", text, call_id=str(part.get("tool_use_id", "")))
    calls = [
        Call.read(str(part.get("id", "")), str(part.get("name", "")), part.get("input"))
        for part in parts
        if part.get("type") == "tool_use"
    ]
    thinking = "\n".join(str(part.get("thinking", "")) for part in parts if part.get("type") == "thinking")
    if words or calls or role == "assistant":
        yield Said(role, text_of(words, f"{param}.content"), tuple(calls), thinking)


def _tool(tool: Any, param: str) -> Mapping[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("input_schema"), dict):
        raise RefusedRequestError("not a tool with an input_schema: other tools are not supported", param)
    fields.MESSAGES_TOOL.check(tool, f"{param}.")
    return fields.function_tool(tool, "input_schema")


def whole(request: Request, answer: Answer) -> bytes:
    end = {"stop_reason": _STOP_REASON[answer.finish], "stop_sequence": answer.stop}
    return dumps({**_head(request, answer), "content": _blocks(answer), **end, "usage": _usage(answer)})


def events(request: Request, answer: Answer) -> Iterator[bytes]:
    """The answer as server-sent events."""
    usage = {**_usage(answer), "output_tokens": 0}
    start = {**_head(request, answer), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield _event("message_start", message=start)
    for number, block in enumerate(_blocks(answer)):
        kind = block["type"]
        if kind == "thinking":
            empty = {**block, "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": block["thinking"]},
                      {"type": "signature_delta", "signature": block["signature"]}]  # fmt: skip
        elif kind == "text":
            empty, deltas = {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        else:
            empty = {**block, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": dumps(block["input"]).decode()}]
        yield _event("content_block_start", index=number, content_block=empty)
        for delta in deltas:
            yield _event("content_block_delta", index=number, delta=delta)
        yield _event("content_block_stop", index=number)
    end = {"stop_reason": _STOP_REASON[answer.finish], "stop_sequence": answer.stop}
    yield _event("message_delta", delta=end, usage={"output_tokens": answer.num_sampled})
    yield _event("message_stop")


def fault(message: str, status: int, param: str | None = None, code: str | None = None) -> bytes:
    kind = _TYPES.get(status, "api_error")
    said = f"prompt is too long: {message}" if code else f"{param}: {message}" if param else message
    return dumps({"type": "error", "error": {"type": kind, "message": said}})


def fault_event(message: str, status: int) -> bytes:
    return b"event: error\ndata: " + fault(message, status) + b"\n\n"


def _head(request: Request, answer: Answer) -> dict[str, Any]:
    return {"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "model": request.model}


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    said = answer.said
    found: list[dict[str, Any]] = []
    if said.reasoning:
        found.append({"type": "thinking", "thinking": said.reasoning, "signature": SIGNATURE})
    if said.text or not said.calls:
        found.append({"type": "text", "text": said.text})
    for call in said.calls:
        found.append({"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments})
    return found


def _usage(answer: Answer) -> dict[str, int]:
    return {"input_tokens": answer.num_before, "output_tokens": answer.num_sampled}
