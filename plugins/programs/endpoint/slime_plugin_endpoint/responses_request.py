"""OpenAI's Responses API: requests, whose input is a list of items, as messages."""

from __future__ import annotations

import base64
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slime_plugin_endpoint.forms import demanded, form_in
from slime_plugin_endpoint.responses_items import items_of, response_id
from slime_plugin_endpoint.said import (
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
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_HARMLESS = {
    "access_programs", "background_options", "client_metadata", "image", "max_tool_calls", "metadata", "model",
    "parallel_tool_calls", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier",
    "service_tier", "store", "stream", "stream_options", "temperature", "top_p", "truncation", "user",
}  # fmt: skip
"""Fields that change nothing here, or how the answer is sent alone. Sampling is the run's."""
_READ = {"include", "input", "instructions", "max_output_tokens", "previous_response_id", "reasoning", "text",
         "tool_choice", "tools"}  # fmt: skip
_REFUSED = {
    "background": "an answer is waited for. Leave it out",
    "conversation": "conversations are not kept by name: take previous_response_id, or send the whole history",
    "context_management": "nothing is left out of a conversation: compact it in the agent",
    "moderation": "nothing is moderated: leave it out",
    "prompt": "prompts are not kept by name: send the text",
    "top_logprobs": "log-probabilities are not told",
}
_OF_TOOL = {"type", "name", "description", "parameters", "strict", "output_schema"}
_KNOWN = _HARMLESS | _READ | _REFUSED.keys()
_RANKS = {"reasoning": 0, "message": 1, "function_call": 2}
"""Items of an answer, in their order."""
_ID = re.compile(r"(?:msg|rs|fc)_([0-9a-f]+)(?:_\d+)?")


@dataclass(frozen=True)
class ResponsesRequest(Request):
    """Attributes:
    behind: all messages but the instructions, which a later request does not inherit.
    is_stored: whether a later request may name the answer.
    body: what the client sent, but the input.
    """

    behind: tuple[Said, ...] = field(kw_only=True)
    is_stored: bool = field(kw_only=True)
    body: Mapping[str, Any] = field(kw_only=True)


def read(body: Mapping[str, Any], repeated: Repeated) -> ResponsesRequest:
    """Raises RefusedRequestError: a field cannot be honoured."""
    _check(body)
    behind = (*_before(body, repeated), *repeated.said(_messages(body, repeated), _said))
    first = text_of(body.get("instructions"), "instructions")
    return ResponsesRequest(
        said=(*([Said("system", first)] if first else []), *behind),
        tools=[_tool(tool, f"tools[{n}]") for n, tool in enumerate(of_kind(body, "tools", list, []))],
        max_tokens=positive(body, "max_output_tokens"),
        stop=(),
        may_call=_may_call(body.get("tool_choice")),
        is_streamed=bool(body.get("stream")),
        wants_usage=True,
        model=str(body.get("model", "")),
        form=form_in(of_kind(of_kind(body, "text", dict, {}), "format", dict, {}), "text.format"),
        demanded=demanded(body.get("tool_choice")),
        behind=behind,
        is_stored=body.get("store") is not False,
        body={name: value for name, value in body.items() if name != "input"},
    )


def stored(repeated: Repeated, name: str) -> tuple[ResponsesRequest, Answer] | None:
    """The answer of an id, and what was asked; None: there is none that was to be stored."""
    request, answer = repeated.answered.get(name.removeprefix("resp_"), (None, None))
    if answer and isinstance(request, ResponsesRequest) and request.is_stored and name == response_id(answer):
        return request, answer
    return None


def _check(body: Mapping[str, Any]) -> None:
    for name, todo in _REFUSED.items():
        if body.get(name):
            raise RefusedRequestError(f"'{name}' is not supported: {todo}", name)
    for name in body:
        if name not in _KNOWN and body[name] is not None:
            raise RefusedRequestError(_unknown(name), name)
    if "message.output_text.logprobs" in of_kind(body, "include", list, []):
        raise RefusedRequestError("'message.output_text.logprobs' is not supported", "include")


def _unknown(name: str) -> str:
    if name == "messages":
        return "'messages' is not known: it is 'input' here, and 'messages' of chat/completions"
    near = difflib.get_close_matches(name, _HARMLESS | _READ, 1)
    return f"'{name:.60}' is not known." + (f" Did you mean '{near[0]}'?" if near else "")


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
    """Items that are one message: the number of the first, and all of them. What the model said at once is one
    message, wherever a client put the results of its calls."""
    items = of_kind(body, "input", (str, list))
    if items is None and body.get("previous_response_id") is None:
        raise RefusedRequestError("there is no input", "input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    items = items or []
    if len(items) > MAX_MESSAGES:
        raise RefusedRequestError(f"there are {len(items)} items: {MAX_MESSAGES} is the limit", "input", FULL)
    found, group = list[list[Any]](), _Group()
    calls = {call.id: name for name, (_, answer) in repeated.answered.items() for call in answer.said.calls}
    for number, item in enumerate(items):
        item = _referred(item, repeated, f"input[{number}]")
        kind = _kind(item, f"input[{number}]")
        if kind not in _RANKS:
            found.append([number, item])
            group = group.behind_result() if kind == "function_call_output" else _Group()
            continue
        answer = _answer_of(item, repeated) or calls.get(str(item.get("call_id")))
        if not group.takes(_RANKS[kind], answer):
            group = _Group([number])
            found.append(group.items)
        group.add(item, _RANKS[kind], answer)
    return found


@dataclass
class _Group:
    """Items of the assistant, behind each other."""

    items: list[Any] = field(default_factory=list)
    answer: str | None = None
    rank: int = 0
    has_result: bool = False

    def takes(self, rank: int, answer: str | None) -> bool:
        """Whether a further item is of the same answer: its id says so, or its place."""
        if not self.items:
            return False
        if answer and self.answer:
            return answer == self.answer
        is_next = rank > self.rank or (rank == self.rank and rank != _RANKS["message"])
        return is_next and not self.has_result

    def add(self, item: Any, rank: int, answer: str | None) -> None:
        self.items.append(item)
        self.answer, self.rank = self.answer or answer, rank

    def behind_result(self) -> _Group:
        self.has_result = True
        return self


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
        if item.get("role") not in _ROLES:
            raise RefusedRequestError("not a message with a known role", param)
        return "message" if item["role"] == "assistant" else "said"
    if kind not in ("reasoning", "function_call", "function_call_output"):
        known = "message, function_call, function_call_output and reasoning are"
        raise RefusedRequestError(f"an item of the type '{kind!s:.60}' is not supported: {known}", f"{param}.type")
    return str(kind)


def _said(message: Any, number: int) -> Iterator[Said]:
    first, *items = message
    param = f"input[{first}]"
    item = items[0]
    kind = _kind(item, param)
    if kind == "function_call_output":
        yield Said("tool", text_of(item.get("output"), f"{param}.output"), call_id=str(item.get("call_id") or ""))
    elif kind == "said":
        yield Said(_ROLES[item["role"]], text_of(item.get("content"), f"{param}.content"))
    else:
        kinds = [(each, each.get("type") or "message") for each in items]
        text = "\n".join(_words(each, param) for each, kind in kinds if kind == "message")
        calls = tuple(_call(each, param) for each, kind in kinds if kind == "function_call")
        thinking = "\n".join(_thinking(each, param) for each, kind in kinds if kind == "reasoning")
        yield Said("assistant", text, calls, thinking)


def _words(item: Mapping[str, Any], param: str) -> str:
    content = item.get("content")
    if isinstance(content, list):
        content = [part["refusal"] if isinstance(part, dict) and part.get("type") == "refusal" and "refusal" in part
                   else part for part in content]  # fmt: skip
    return text_of(content, f"{param}.content")


def _call(item: Mapping[str, Any], param: str) -> Call:
    if not isinstance(item.get("name"), str):
        raise RefusedRequestError("not the call of a function", param)
    return Call.read(str(item.get("call_id") or item.get("id") or ""), item["name"], item.get("arguments"))


def _thinking(item: Mapping[str, Any], param: str) -> str:
    """The whole where the item has it, else what is left of it."""
    for name in ("content", "summary"):
        if text := text_of(item.get(name), f"{param}.{name}"):
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
    for name in tool:
        if name not in _OF_TOOL and tool[name] not in (None, False, ["direct"]):
            raise RefusedRequestError(f"'{name}' of a function is not supported", f"{param}.{name}")
    known = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
    return {"type": "function", "function": {"description": "", "parameters": {"type": "object"}, **known}}


def _may_call(choice: Any) -> bool:
    if isinstance(choice, dict):
        if choice.get("type") != "function":
            raise RefusedRequestError(f"'tool_choice' is of the type '{choice.get('type')!s:.60}'", "tool_choice")
    elif choice not in (None, "auto", "required", "none"):
        raise RefusedRequestError(f"'tool_choice' is {choice!r:.60}", "tool_choice")
    return bool(choice != "none")
