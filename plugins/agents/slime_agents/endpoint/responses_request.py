"""OpenAI's Responses API: requests, whose input is a list of items, as messages; and answers as items."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slime_agents.endpoint.fields import SERVER, TEXT_ALONE, WHOLE, Fields, function_tool, tool_choice
from slime_agents.endpoint.forms import form_in
from slime_agents.endpoint.said import (
    FULL,
    MAX_MESSAGES,
    Answer,
    Call,
    RefusedRequestError,
    Repeated,
    Request,
    Said,
    of_kind,
    positive,
    text_of,
)

NOT_FOUND = "previous_response_not_found"
ENCRYPTED = "reasoning.encrypted_content"
Item = dict[str, Any]
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
RESPONSES = Fields(
    honoured=("include", "input", "instructions", "max_output_tokens", "model", "parallel_tool_calls",
              "previous_response_id", "reasoning", "store", "stream", "stream_options", "text", "tool_choice", "tools"),
    ignored=("access_programs", "background_options", "client_metadata", "image", "max_tool_calls", "metadata",
             "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier",
             "truncation", "user"),
    of_the_run=("temperature", "top_p", "top_k", "seed"),
    refused={
        "background": "an answer is waited for",
        "conversation": "take previous_response_id, or send the whole history",
        "context_management": WHOLE,
        "moderation": SERVER,
        "prompt": "send the text itself",
        **dict.fromkeys(("logprobs", "top_logprobs"), TEXT_ALONE),
    },
    meant={"messages": "input, which chat/completions calls messages", "max_tokens": "max_output_tokens",
           "max_completion_tokens": "max_output_tokens", "response_format": "text", "system": "instructions",
           "reasoning_effort": "reasoning"},
)  # fmt: skip
TEXT = Fields(honoured=("format",), of_the_run=("verbosity",))
TOOL = Fields(
    honoured=("type", "name", "description", "parameters"), ignored=("strict", "output_schema"),
    refused=dict.fromkeys(("allowed_callers", "async", "defer_loading"), SERVER),
    neutral={"allowed_callers": (["direct"],)},
)  # fmt: skip
_DIRECT = {"caller": ({"type": "direct"},)}
ITEMS: Mapping[str, Fields] = {
    "message": Fields(honoured=("type", "role", "content"), ignored=("id", "status", "phase")),
    "reasoning": Fields(honoured=("type", "id", "content", "summary", "encrypted_content"), ignored=("status",)),
    "function_call": Fields(
        honoured=("type", "id", "call_id", "name", "arguments"), ignored=("status", "parsed_arguments"),
        refused=dict.fromkeys(("async", "caller", "namespace"), SERVER), neutral=_DIRECT),
    "function_call_output": Fields(
        honoured=("type", "call_id", "output"), ignored=("id", "status"), refused={"caller": SERVER}, neutral=_DIRECT),
}  # fmt: skip
PART = Fields(honoured=("type", "text", "refusal"),
              ignored=("annotations", "logprobs", "parsed", "prompt_cache_breakpoint"))  # fmt: skip
_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")
_RANKS = {"reasoning": 0, "message": 1, "function_call": 2}
"""Items of an answer, in their order."""
_ID = re.compile(r"(?:msg|rs|fc)_([0-9a-f]+)(?:_\d+)?")


@dataclass(frozen=True)
class ResponsesRequest(Request):
    """A request.

    Attributes:
        behind: all messages but the instructions, which a later request does not inherit.
        is_stored: a later request may name the answer.
        body: what the client sent, but the input.
    """

    behind: tuple[Said, ...] = field(kw_only=True)
    is_stored: bool = field(kw_only=True)
    body: Mapping[str, Any] = field(kw_only=True)


def read(body: Mapping[str, Any], repeated: Repeated) -> ResponsesRequest:
    """Raises RefusedRequestError: a field cannot be honoured."""
    _check(body)
    tools = [_tool(tool, f"tools[{n}]") for n, tool in enumerate(of_kind(body, "tools", list, []))]
    behind = (*_before(body, repeated), *repeated.said(_messages(body, repeated), _said))
    first = text_of(body.get("instructions"), "instructions")
    may_call, demanded = tool_choice(body.get("tool_choice"), [tool["function"]["name"] for tool in tools])
    return ResponsesRequest(
        said=(*([Said("system", first)] if first else []), *behind),
        tools=tools,
        max_tokens=positive(body, "max_output_tokens"),
        stop=(),
        may_call=may_call,
        is_streamed=bool(body.get("stream")),
        wants_usage=True,
        model=str(body.get("model", "")),
        form=form_in(of_kind(of_kind(body, "text", dict, {}), "format", dict, {}), "text.format"),
        demanded=demanded,
        behind=behind,
        is_stored=body.get("store") is not False,
        body={name: value for name, value in body.items() if name != "input"},
    )


def stored(repeated: Repeated, name: str) -> tuple[ResponsesRequest, Answer] | None:
    """The request and the answer of an id; None: there is none that was to be stored."""
    request, answer = repeated.answered.get(name.removeprefix("resp_"), (None, None))
    if answer and isinstance(request, ResponsesRequest) and request.is_stored and name == response_id(answer):
        return request, answer
    return None


def response_id(answer: Answer) -> str:
    return f"resp_{answer.id}"


def items_of(answer: Answer, *, is_encrypted: bool, is_summed_up: bool) -> list[Item]:
    """Thinking, words and calls of an answer, in this order. Their ids name the answer.

    Args:
        is_encrypted: repeat thinking as `encrypted_content` in base64: clients give it back unread.
        is_summed_up: repeat thinking as its summary, which many clients show in place of it.
    """
    said, found = answer.said, list[Item]()
    status = "incomplete" if answer.finish == "length" else "completed"
    if said.reasoning:
        summary = [{"type": "summary_text", "text": said.reasoning}] if is_summed_up else []
        item = {"id": f"rs_{answer.id}", "type": "reasoning", "summary": summary,
                "content": [{"type": "reasoning_text", "text": said.reasoning}], "status": status}  # fmt: skip
        if is_encrypted:
            item["encrypted_content"] = base64.b64encode(said.reasoning.encode()).decode()
        found.append(item)
    if said.text or not said.calls:
        part = {"type": "output_text", "text": said.text, "annotations": [], "logprobs": []}
        found.append(
            {"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "status": status, "content": [part]}
        )
    for number, call in enumerate(said.calls):
        found.append({"id": f"fc_{answer.id}_{number}", "type": "function_call", "call_id": call.id,
                      "name": call.name, "arguments": call.json, "status": "completed"})  # fmt: skip
    return found


def _check(body: Mapping[str, Any]) -> None:
    RESPONSES.check(body)
    TEXT.check(of_kind(body, "text", dict, {}), "text.")
    of_kind(body, "parallel_tool_calls", bool)
    of_kind(body, "reasoning", dict)
    if "message.output_text.logprobs" in of_kind(body, "include", list, []):
        raise RefusedRequestError("'message.output_text.logprobs' is not supported: agents are given text", "include")


def _before(body: Mapping[str, Any], repeated: Repeated) -> Sequence[Said]:
    """The conversation behind which this one goes on."""
    name = of_kind(body, "previous_response_id", str)
    if name is None:
        return ()
    if found := stored(repeated, name):
        request, answer = found
        return (*request.behind, answer.said)
    what = f"Previous response with id '{name:.100}' not found: none of this attempt, or one asked with store=false"
    raise RefusedRequestError(what, "previous_response_id", NOT_FOUND)


def _messages(body: Mapping[str, Any], repeated: Repeated) -> list[list[Any]]:
    """Groups of items that are one message: the number of the first, and all of them. What the model said at once is
    one message, wherever a client put the results of its calls."""
    items = of_kind(body, "input", (str, list))
    if items is None and body.get("previous_response_id") is None:
        raise RefusedRequestError("there is no input", "input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    items = items or []
    if len(items) > MAX_MESSAGES:
        raise RefusedRequestError(f"there are {len(items)} items: {MAX_MESSAGES} is the limit", "input", FULL)
    found, group, groups = list[list[Any]](), _Group(), list[_Group]()
    calls = {call.id: name for name, (_, answer) in repeated.answered.items() for call in answer.said.calls}
    for number, item in enumerate(items):
        item = _referred(item, repeated, f"input[{number}]")
        kind = _kind(item, f"input[{number}]")
        if kind not in _RANKS:
            found.append([number, item])
            if kind == "function_call_output":
                group.has_result = True
            else:
                group = _Group()
            continue
        answer = _answer_of(item, repeated) or calls.get(str(item.get("call_id")))
        if not group.takes(_RANKS[kind], answer):
            group = _Group([number])
            found.append(group.items)
            groups.append(group)
        group.add(item, _RANKS[kind], answer)
    for each in groups:
        if each.answer:
            each.complete(repeated.answered[each.answer][1].said)
    return found


@dataclass
class _Group:
    """Items of the assistant, behind each other."""

    items: list[Any] = field(default_factory=list)
    answer: str | None = None
    rank: int = 0
    has_result: bool = False

    def takes(self, rank: int, answer: str | None) -> bool:
        """A further item is of the same answer: its id says so, or its place."""
        if not self.items:
            return False
        if answer and self.answer:
            return answer == self.answer
        is_next = rank > self.rank or (rank == self.rank and rank != _RANKS["message"])
        return is_next and not self.has_result

    def add(self, item: Any, rank: int, answer: str | None) -> None:
        self.items.append(item)
        self.answer, self.rank = self.answer or answer, rank

    def complete(self, said: Said) -> None:
        """Add the words before calls that some clients send back without them."""
        kinds = [item.get("type") or "message" for item in self.items[1:]]
        if said.calls and kinds.count("function_call") == len(said.calls) and "message" not in kinds:
            self.items.append({"type": "message", "role": "assistant", "content": said.text})


def _referred(item: Any, repeated: Repeated, param: str) -> Any:
    """The item itself, where a client named one that it was answered."""
    if not isinstance(item, dict) or (item.get("type") != "item_reference" and set(item) != {"id"}):
        return item
    if name := _answer_of(item, repeated):
        request, answer = repeated.answered[name]
        for each in items_of(answer, is_encrypted=False, is_summed_up=False):
            if each["id"] == item["id"] and isinstance(request, ResponsesRequest) and request.is_stored:
                return each
    raise RefusedRequestError(f"Item with id '{item.get('id')!s:.100}' not found: send the item itself", param)


def _answer_of(item: Mapping[str, Any], repeated: Repeated) -> str | None:
    match = _ID.fullmatch(str(item.get("id")))
    return match[1] if match and match[1] in repeated.answered else None


def _kind(item: Any, param: str) -> str:
    """reasoning, message or function_call, of the assistant; function_call_output or `said`, of others."""
    if not isinstance(item, dict):
        raise RefusedRequestError("not an item", param)
    kind = item.get("type") or "message"
    if kind == "message":
        if str(item.get("role")) not in _ROLES:
            raise RefusedRequestError("not a message with a known role", param)
        ITEMS[kind].check(item, f"{param}.")
        return "message" if item["role"] == "assistant" else "said"
    if kind not in ("reasoning", "function_call", "function_call_output"):
        known = "message, function_call, function_call_output and reasoning are"
        raise RefusedRequestError(f"an item of the type '{kind!s:.60}' is not supported: {known}", f"{param}.type")
    ITEMS[kind].check(item, f"{param}.")
    return str(kind)


def _said(message: Any, number: int) -> Iterator[Said]:
    first, *items = message
    param = f"input[{first}]"
    item = items[0]
    kind = _kind(item, param)
    if kind == "function_call_output":
        yield Said("tool", _text(item.get("output"), f"{param}.output"), call_id=str(item.get("call_id") or ""))
    elif kind == "said":
        yield Said(_ROLES[item["role"]], _text(item.get("content"), f"{param}.content"))
    else:
        kinds = [(each, each.get("type") or "message") for each in items]
        text = "\n".join(_text(each.get("content"), f"{param}.content") for each, kind in kinds if kind == "message")
        calls = tuple(_call(each, param) for each, kind in kinds if kind == "function_call")
        thinking = "\n".join(_thinking(each, param) for each, kind in kinds if kind == "reasoning")
        yield Said("assistant", text, calls, thinking)


def _text(content: Any, param: str) -> str:
    """The text of parts, which are named by who says them."""
    if not isinstance(content, list):
        return text_of(content, param)
    parts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _PARTS:
            PART.check(part, f"{param}[{number}].")
            part = {"type": "text", "text": part.get("refusal" if kind == "refusal" else "text")}
        parts.append(part)
    return text_of(parts, param)


def _call(item: Mapping[str, Any], param: str) -> Call:
    if not isinstance(item.get("name"), str):
        raise RefusedRequestError("not the call of a function", param)
    return Call.read(str(item.get("call_id") or item.get("id") or ""), item["name"], item.get("arguments"))


def _thinking(item: Mapping[str, Any], param: str) -> str:
    """The thinking of an item, whole where the item has it, else what is left of it."""
    for name in ("content", "summary"):
        if text := _text(item.get(name), f"{param}.{name}"):
            return text
    try:
        return base64.b64decode(str(item.get("encrypted_content") or ""), validate=True).decode()
    except ValueError:
        return ""  # somebody else's


def _tool(tool: Any, param: str) -> Mapping[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        todo = "functions alone are. Give the agent a function of its own for it"
        raise RefusedRequestError(f"a tool of the type '{kind!s:.60}' is not supported: {todo}", param)
    if not isinstance(tool.get("name"), str):
        raise RefusedRequestError("a function has no name", param)
    TOOL.check(tool, f"{param}.")
    return function_tool(tool)
