"""OpenAI's Responses API on the wire: answers, whole and as events. Requests are in `responses_request`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from slime_agents.endpoint import chat_completions, values
from slime_agents.endpoint.bodies import TurnedAwayError
from slime_agents.endpoint.responses_request import (
    ENCRYPTED,
    Item,
    ResponsesRequest,
    items_of,
    read,
    response_id,
    stored,
)
from slime_agents.endpoint.said import Answer, Repeated

KEEP_ALIVE = chat_completions.KEEP_ALIVE
fault = chat_completions.fault
__all__ = ["KEEP_ALIVE", "events", "fault", "fault_event", "named", "read", "whole"]
_AS_ASKED = {
    "instructions": None, "max_output_tokens": None, "max_tool_calls": None, "metadata": {}, "model": "",
    "parallel_tool_calls": True, "previous_response_id": None, "prompt_cache_key": None, "reasoning": None,
    "safety_identifier": None, "service_tier": "default", "store": True, "temperature": None,
    "text": {"format": {"type": "text"}}, "tool_choice": "auto", "top_p": None, "truncation": "disabled", "user": None,
}  # fmt: skip
"""Fields of a request that the answer repeats, with their values where the client gave none."""


def whole(request: ResponsesRequest, answer: Answer) -> bytes:
    return values.dumps(_response(request, answer, _items(request, answer)))


def named(name: str, repeated: Repeated, *, is_deleted: bool) -> bytes:
    """An answer that was given before, or the word that it is deleted.

    Raises:
        TurnedAwayError: there is none of this id.
    """
    found = stored(repeated, name)
    if found is None:
        raise TurnedAwayError(f"Response with id '{name:.100}' not found", HTTPStatus.NOT_FOUND)
    request, answer = found
    if not is_deleted:
        return whole(request, answer)
    del repeated.answered[answer.id]
    return values.dumps({"id": name, "object": "response", "deleted": True})


def events(request: ResponsesRequest, answer: Answer) -> Iterator[bytes]:
    """The answer as server-sent events."""
    items = _items(request, answer)
    last = _response(request, answer, items)
    begun = {**last, "output": [], "status": "in_progress", "incomplete_details": None, "usage": None}
    told = [("response.created", {"response": begun}), ("response.in_progress", {"response": begun})]
    for number, item in enumerate(items):
        told += _item_events(number, item)
    told.append((f"response.{last['status']}", {"response": last}))
    for number, (name, fields) in enumerate(told):
        yield _event(name, {"type": name, "sequence_number": number, **fields})


def fault_event(message: str, status: int) -> bytes:
    error = values.loads(fault(message, status))["error"]
    flat = {name: error[name] for name in ("message", "code", "param")}  # clients look in one of two places
    return _event("error", {"type": "error", "sequence_number": 0, "error": error, **flat})


def _item_events(place: int, item: Item) -> Iterator[tuple[str, dict[str, Any]]]:
    at = {"output_index": place}
    of = {**at, "item_id": item["id"]}
    if item["type"] == "function_call":
        begun: Item = {"arguments": ""}
    elif item["type"] == "message":
        begun = {"content": []}
    else:
        begun = {"content": [], "summary": []}
    yield "response.output_item.added", {**at, "item": {**item, **begun, "status": "in_progress"}}
    for number, part in enumerate(item.get("summary", [])):
        of_part, text = {**of, "summary_index": number}, part["text"]
        yield "response.reasoning_summary_part.added", {**of_part, "part": {**part, "text": ""}}
        yield "response.reasoning_summary_text.delta", {**of_part, "delta": text}
        yield "response.reasoning_summary_text.done", {**of_part, "text": text}
        yield "response.reasoning_summary_part.done", {**of_part, "part": part}
    for number, part in enumerate(item.get("content", [])):
        of_part, text, kind = {**of, "content_index": number}, part["text"], part["type"]
        more: Item = {"logprobs": []} if kind == "output_text" else {}
        yield "response.content_part.added", {**of_part, "part": {**part, "text": ""}}
        if text:
            yield f"response.{kind}.delta", {**of_part, "delta": text, **more}
        yield f"response.{kind}.done", {**of_part, "text": text, **more}
        yield "response.content_part.done", {**of_part, "part": part}
    if item["type"] == "function_call":
        yield "response.function_call_arguments.delta", {**of, "delta": item["arguments"]}
        yield "response.function_call_arguments.done", {**of, "arguments": item["arguments"], "name": item["name"]}
    yield "response.output_item.done", {**at, "item": item}


def _items(request: ResponsesRequest, answer: Answer) -> list[Item]:
    is_summed_up = bool((request.body.get("reasoning") or {}).get("summary"))
    return items_of(answer, is_encrypted=ENCRYPTED in (request.body.get("include") or ()), is_summed_up=is_summed_up)


def _response(request: ResponsesRequest, answer: Answer, items: list[Item]) -> dict[str, Any]:
    is_cut = answer.finish == "length"
    asked = {name: otherwise if (value := request.body.get(name)) is None else value
             for name, otherwise in _AS_ASKED.items()}  # fmt: skip
    return {
        **asked,
        "id": response_id(answer),
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if is_cut else "completed",
        "background": False,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": items,
        "tools": [{"parameters": None, "strict": True, **tool} for tool in request.body.get("tools") or ()],
        "usage": _usage(answer),
    }


def _usage(answer: Answer) -> dict[str, Any]:
    before, sampled, said = answer.num_before, answer.num_sampled, answer.said
    thought, rest = len(said.reasoning), len(said.text) + sum(len(call.name + call.json) for call in said.calls)
    return {
        "input_tokens": before,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": sampled,
        # By the share of the characters.
        "output_tokens_details": {"reasoning_tokens": sampled * thought // (thought + rest) if thought else 0},
        "total_tokens": before + sampled,
    }


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: ".encode() + values.dumps(fields) + b"\n\n"
