"""Values that the methods of an environment return: each becomes text, or a failure that names it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from guarded_workers.wire import FaultError
from slime.as_json import to_json
from slime.time_limit import FAILURES, failure
from slime.types import Message


def messages(said: Any, method: str) -> list[Message]:
    """Messages for the model, of which any value that is no message becomes the text of one.

    Raises:
        FaultError: it is None, empty, no whole message, or has no text.
    """
    found = list(said) if isinstance(said, list | tuple) else [said]
    if said is None or not found:
        raise FaultError(f"{method} said {said!r}, neither text nor messages")
    if not any(map(_is_message, found)):
        return [{"role": "user", "content": _text(said, method)}]
    return [_message(each, method) for each in found]


def taken(given: Any) -> tuple[Any, float, bool]:
    """The three values that `step` returned. Raises FaultError: they are others."""
    if not isinstance(given, tuple) or len(given) != 3:
        raise FaultError(f"step returned {_shown(given)}, not (what the model is told, reward, done)")
    told, reward, done = given
    try:
        number = math.nan if isinstance(reward, str | bytes) else float(reward)
        is_done = None if done is None or isinstance(done, str | bytes) else bool(done)
    except FAILURES as error:
        what = f"the reward {_shown(reward)} and done={_shown(done)}"
        raise FaultError(f"step returned {what}, which are no number and no truth: {_why(error)}") from None
    if not math.isfinite(number):
        raise FaultError(f"step returned the reward {_shown(reward)}; rewards are finite numbers")
    if is_done is None:
        raise FaultError(f"step returned done={_shown(done)}, which is neither true nor false")
    return told, number, is_done


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and ("role" in value or "content" in value)


def _message(value: Any, method: str) -> Message:
    if not _is_message(value) or not isinstance(value.get("role"), str):
        raise FaultError(f"{method} said {_shown(value)} among its messages, which has no role")
    content = value.get("content")
    if content is None and not value.get("tool_calls"):
        raise FaultError(f"{method} said {_shown(value)}, a message that has no content")
    text = "" if content is None else _text(_joined(content), method)
    try:
        message: Message = json.loads(to_json({**value, "content": text}))
    except FAILURES as error:
        raise FaultError(f"{method} said a message that cannot be written as JSON: {_why(error)}") from None
    return message


def _joined(content: Any) -> Any:
    """Texts that are parts of a content as one."""
    parts = content if isinstance(content, list) else []
    if not parts or not all(isinstance(each, Mapping) and isinstance(each.get("text"), str) for each in parts):
        return content
    return "".join(each["text"] for each in parts)


def _text(value: Any, method: str) -> str:
    try:
        if isinstance(value, str):
            return str(value)
        if isinstance(value, bytes | bytearray):
            return value.decode(errors="replace")
        if isinstance(value, Mapping | list | tuple) or hasattr(value, "tolist"):
            return to_json(dict(value) if isinstance(value, Mapping) else value, ensure_ascii=False)
        return str(value)
    except FAILURES as error:
        name = type(value).__name__
        raise FaultError(f"{method} said a value of type {name} that has no text: {_why(error)}") from None


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except FAILURES:
        return f"a value of type {type(value).__name__}"


def _why(error: BaseException) -> str:
    try:
        return failure(error)
    except FAILURES:
        return type(error).__name__
