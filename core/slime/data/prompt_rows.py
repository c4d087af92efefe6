"""What rows of prompts and demonstrations must be, as far as no tokenizer tells. No numpy: the plan asks, too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from slime.config.schema import DataConfig
from slime.data.rows import Row, kind_of
from slime.errors import SlimeError
from slime.types import Message

MESSAGES_KEY = "messages"
"""Column of demonstrations."""
_LABEL = "Give every row a label, or set data.label_key=null if the reward needs none."


def check_prompts(rows: Sequence[Row], data: DataConfig) -> None:
    """Validate the rows of a prompt set.

    Raises:
        SlimeError: the first bad row, by file and line (or row) number.
    """
    for row in rows:
        if prompt_messages(row, data.prompt_key)[-1]["role"] == "assistant":
            what = f"'{data.prompt_key}' ends with the assistant's turn, which is to be generated"
            raise SlimeError(what, where=row.where, todo="End the prompt with the turn that is to be answered.")
    if data.label_key is not None:
        _check_labels(rows, data.label_key)


def conversation(row: Row) -> tuple[Message, ...]:
    """The messages of a demonstration, whose last one is the answer."""
    messages = prompt_messages(row, MESSAGES_KEY)
    if len(messages) < 2 or messages[-1]["role"] != "assistant":
        todo = "A demonstration is a conversation whose last message has the role 'assistant'."
        raise SlimeError(f"'{MESSAGES_KEY}' does not end with an assistant's answer", where=row.where, todo=todo)
    return messages


def prompt_messages(row: Row, key: str) -> tuple[Message, ...]:
    """The chat messages of a row; a plain string is one message of the user."""
    value = row[key]
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        what = f"'{key}' is {kind_of(value)}, not text or a list of messages"
        raise SlimeError(what, where=row.where, todo='Write it as [{"role": "user", "content": "..."}].')
    if not value:
        raise SlimeError(f"'{key}' holds no message", where=row.where, todo="Mend or delete the row.")
    for index, message in enumerate(value):
        check_message(message, f"'{key}' message {index + 1}", row.where)
    return tuple(value)


def check_message(message: Any, name: str, where: str) -> None:
    """Refuse a message that is not `{"role": text, "content": non-empty text}`; calls of tools need no content."""
    todo = 'A message is {"role": "user", "content": "..."}.'
    if not isinstance(message, dict):
        raise SlimeError(f"{name} is {kind_of(message)}", where=where, todo=todo)
    for field in ("role", "content"):
        value = message.get(field)
        if field == "content" and not value and message.get("tool_calls"):
            continue
        if not isinstance(value, str):
            fact = f"has no {field}" if value is None else f"has {kind_of(value)} as its {field}"
            raise SlimeError(f"{name} {fact}", where=where, todo=todo)
        if not value.strip():
            raise SlimeError(f"{name} has an empty {field}", where=where, todo=todo)


def _check_labels(rows: Sequence[Row], key: str) -> None:
    """Labels are of one kind throughout a file: a stray null, list or number among texts is a damaged row."""
    first = rows[0]
    for row in rows:
        label = row[key]
        if label is None:
            raise SlimeError(f"'{key}' is null", where=row.where, todo=_LABEL)
        if kind_of(label) != kind_of(first[key]):
            what = f"'{key}' is {kind_of(label)}, but {kind_of(first[key])} in {first.where}"
            raise SlimeError(what, where=row.where, todo="Write every label of the file in the same way.")
        if (isinstance(label, float) and not math.isfinite(label)) or (isinstance(label, str) and not label.strip()):
            what = f"'{key}' is {'empty' if isinstance(label, str) else label}"
            raise SlimeError(what, where=row.where, todo=_LABEL)
