"""OpenAI's Responses API: what the model said, as items."""

from __future__ import annotations

import base64
from typing import Any

from slime_agents.endpoint.said import Answer

Item = dict[str, Any]


def response_id(answer: Answer) -> str:
    return f"resp_{answer.id}"


def items_of(answer: Answer, *, is_encrypted: bool, is_summed_up: bool) -> list[Item]:
    """Thinking, words and calls, in this order. Their ids name the answer.

    Args:
        is_encrypted: whether thinking is repeated as `encrypted_content`, by which clients give back what they do not
            read. It is written in base64.
        is_summed_up: whether thinking is repeated as its summary, which many clients show in place of it.
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
