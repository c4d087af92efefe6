"""Checks of the rows of prompts and demonstrations that need no tokenizer. No numpy: the plan asks, too."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slime.config.schema import DataConfig
from slime.data.rows import Row, as_text, kind_of, unfolded
from slime.errors import SlimeError, did_you_mean
from slime.types import Message

MESSAGES_KEY = "messages"
"""Column of demonstrations."""
ANSWERS = ("chosen", "rejected")
"""Columns of pairs of answers."""
LAST_TURN = ".-1.content"
"""Behind the column of the prompt: the label is the conversation's last turn."""
_LABEL = "Give every row a label, or set data.label_key=null if the reward needs none."


def check_prompts(rows: Sequence[Row], data: DataConfig) -> None:
    """Validate the rows of a prompt set.

    Raises:
        SlimeError: the first bad row, by file and line (or row) number.
    """
    for row in rows:
        if asked(row, data)[-1]["role"] == "assistant":
            what = f"'{data.prompt_key}' ends with the assistant's turn, which is to be generated"
            todo = f"To cut it off and compare with it, set data.label_key={data.prompt_key}{LAST_TURN}."
            raise SlimeError(what, where=row.where, todo=todo)
    if data.label_key is not None:
        _check_labels(rows, data.label_key)


def asked(row: Row, data: DataConfig) -> tuple[Message, ...]:
    """The messages of a row's prompt, behind the system prompt if there is one."""
    _require(row, data.prompt_key, "data.prompt_key names the column; a set of eval.sets may have its own.")
    messages = prompt_messages(row, data.prompt_key)
    if data.label_key == f"{data.prompt_key}{LAST_TURN}":
        todo = "Leave the row out, or name another column."
        messages = _with_answer(row, data.prompt_key, messages, todo)[:-1]
    if data.system_prompt is None:
        return messages
    if messages[0]["role"] == "system":
        what = "the prompt has a system message of its own, and system_prompt is set"
        todo = "Leave the system prompt out, or the row's system message."
        raise SlimeError(what, where=row.where, todo=todo)
    return {"role": "system", "content": data.system_prompt}, *messages


def _require(row: Row, key: str, setting: str) -> None:
    """Refuse a row without that column, which may be called otherwise.

    Args:
        setting: how to name another one.
    """
    try:
        row[key]
    except SlimeError as error:
        raise SlimeError(error.what, where=error.where, todo=f"{error.todo} {setting}") from None


def others(row: Row, data: DataConfig, *, supervised: bool = False) -> dict[str, Any]:
    """Columns of a row beside prompt and label, or, of a supervised one, beside its conversations."""
    own = {data.prompt_key, *((MESSAGES_KEY, *ANSWERS) if supervised else (data.label_key,))}
    return {name: value for name, value in row.values.items() if name not in own}


def check_numbers(where: str, row: Mapping[str, Any], names: Iterable[str], count: int | None = 0) -> None:
    """Refuse a row that has no number in a column of these names, which the objective reads.

    Args:
        row: its columns that may be read.
        count: a list of this many numbers will do, too; None: a list of any length; 0: none.
    """
    for name in names:
        if name not in row:
            what, todo = f"the row has no column '{name}', which the objective reads", did_you_mean(name, row)
            raise SlimeError(what, where=where, todo=todo if row else "Give every row such a number.")
        value = row[name]
        numbers = value if isinstance(value, list) and count != 0 else [value]
        if numbers is value and count and len(value) != count:
            what = f"'{name}' has {len(value)} numbers, and the answer {count} tokens with its end token"
            raise SlimeError(what, where=where, todo="Give one number, or one for each of these tokens.")
        for number in numbers:
            is_number = type(number) in (int, float)
            if not is_number or not abs(number) < 3e38:  # fp32 holds it
                what = f"'{name}' has {number if is_number else kind_of(number)} where the objective reads a number"
                raise SlimeError(what, where=where, todo="Mend or delete the row.")


def conversations(row: Row, prompt_key: str, *, pairs: bool) -> list[tuple[Message, ...]]:
    """The conversations that a row has to learn from, whose last messages are the answers: one of a demonstration; two
    of a pair, which differ in the last message alone, the chosen answer first.

    An answer of a pair is text, or the assistant's message in a list, behind the row's prompt; or a list of messages
    that has the prompt in it.
    """
    if not pairs:
        todo = "A demonstration is a conversation whose last message has the role 'assistant'."
        return [_with_answer(row, MESSAGES_KEY, prompt_messages(row, MESSAGES_KEY), todo)]
    chosen, rejected = (_answered(row, key, prompt_key) for key in ANSWERS)
    if chosen[:-1] != rejected[:-1]:
        todo = "Both have to answer the same prompt; leave the row out, or mend it."
        raise SlimeError("'chosen' and 'rejected' differ before their last message", where=row.where, todo=todo)
    if chosen == rejected:
        raise SlimeError("'chosen' and 'rejected' are the same", where=row.where, todo="Leave the row out.")
    return [chosen, rejected]


def _answered(row: Row, key: str, prompt_key: str) -> tuple[Message, ...]:
    value = unfolded(row[key], key, row.where)
    if isinstance(value, str):
        message = {"role": "assistant", "content": value}
        check_message(message, f"'{key}'", row.where)
        return *prompt_messages(row, prompt_key), message
    messages = prompt_messages(row, key)
    if messages[0]["role"] == "assistant":
        messages = *prompt_messages(row, prompt_key), *messages
    return _with_answer(row, key, messages, "Mend the row.")


def _with_answer(row: Row, key: str, messages: tuple[Message, ...], todo: str) -> tuple[Message, ...]:
    if len(messages) < 2 or messages[-1]["role"] != "assistant":
        raise SlimeError(f"'{key}' does not end with an assistant's answer", where=row.where, todo=todo)
    return messages


def prompt_messages(row: Row, key: str) -> tuple[Message, ...]:
    """The chat messages of a row; a plain string is one message of the user, unless it is messages written as text."""
    value = unfolded(row[key], key, row.where)
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        what = f"'{key}' is {kind_of(value)}, not text or a list of messages"
        raise SlimeError(what, where=row.where, todo='Write it as [{"role": "user", "content": "..."}].')
    if not value:
        raise SlimeError(f"'{key}' holds no message", where=row.where, todo="Mend or delete the row.")
    found = []
    for number, message in enumerate(value, start=1):
        name = f"'{key}' message {number}"
        if isinstance(message, dict) and isinstance(message.get("content"), list):
            message = {**message, "content": as_text(message["content"], name, row.where)}
        check_message(message, name, row.where)
        found.append(message)
    return tuple(found)


def is_text(row: Row, key: str) -> bool:
    """Whether a row's prompt is a text, and no messages, written as text neither."""
    return isinstance(unfolded(row[key], key, row.where), str)


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
        _require(row, key, "data.label_key names the column; null where the reward needs none.")
        label = row[key]
        if label is None:
            raise SlimeError(f"'{key}' is null", where=row.where, todo=_LABEL)
        if kind_of(label) != kind_of(first[key]):
            what = f"'{key}' is {kind_of(label)}, but {kind_of(first[key])} in {first.where}"
            raise SlimeError(what, where=row.where, todo="Write every label of the file in the same way.")
        if (isinstance(label, float) and not math.isfinite(label)) or (isinstance(label, str) and not label.strip()):
            what = f"'{key}' is {'empty' if isinstance(label, str) else label}"
            raise SlimeError(what, where=row.where, todo=_LABEL)
