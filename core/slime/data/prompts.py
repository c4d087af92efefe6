"""Prompt sets: validated whole before a run starts, tokenised once, then taken in a seeded order over epochs."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slime.config.schema import DataConfig
from slime.data.order import EpochOrder
from slime.data.rows import Row, RowFile, kind_of, read_rows
from slime.data.tokenize import Tokenizer, encode, render, require_chat_template
from slime.errors import SlimeError
from slime.types import Message, Prompt


def check(path: Path, data: DataConfig) -> RowFile:
    """Validate everything about a prompt set that needs no tokenizer; cheap enough for `slime plan`.

    Raises:
        SlimeError: the first bad row, by file and line (or row) number.
    """
    file = read_rows(path)
    for row in file.rows:
        prompt_messages(row, data.prompt_key)
    if data.label_key is not None:
        _check_labels(file.rows, data.label_key)
    return file


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
    """Refuse a message that is not `{"role": text, "content": non-empty text}`."""
    todo = 'A message is {"role": "user", "content": "..."}.'
    if not isinstance(message, dict):
        raise SlimeError(f"{name} is {kind_of(message)}", where=where, todo=todo)
    for field in ("role", "content"):
        value = message.get(field)
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
            todo = "Give every row a label, or set data.label_key=null if the reward needs none."
            raise SlimeError(f"'{key}' is null", where=row.where, todo=todo)
        if kind_of(label) != kind_of(first[key]):
            what = f"'{key}' is {kind_of(label)}, but {kind_of(first[key])} in {first.where}"
            raise SlimeError(what, where=row.where, todo="Write every label of the file in the same way.")


class PromptSet:
    """Every prompt of one file that fits, tokenised.

    Args:
        data: keys, template keywords and what to do with long prompts; `data.path` is not read.
        path: the file.
        tokenizer: with a chat template.
        max_prompt_tokens: limit of a prompt's tokens, generation prompt included.

    Attributes:
        content_hash: of the file's bytes.
        num_skipped: prompts left out because they were too long (`data.skip_long_prompts`).
    """

    def __init__(self, data: DataConfig, path: Path, tokenizer: Tokenizer, max_prompt_tokens: int) -> None:
        require_chat_template(tokenizer)
        file = check(path, data)
        self._data, self.content_hash = data, file.content_hash
        tokens = _tokenize(file.rows, data, tokenizer)
        fits = [len(ids) <= max_prompt_tokens for ids in tokens]
        if not data.skip_long_prompts and not all(fits):
            raise _too_long(file.rows[fits.index(False)], len(tokens[fits.index(False)]), max_prompt_tokens)
        self.num_skipped = fits.count(False)
        self._rows = [row for row, fit in zip(file.rows, fits, strict=True) if fit]
        self._tokens = [array("i", ids) for ids, fit in zip(tokens, fits, strict=True) if fit]
        if not self._rows:
            todo = "Raise rollout.max_prompt_tokens or give shorter prompts."
            raise SlimeError(f"every prompt has more than {max_prompt_tokens} tokens", where=str(path), todo=todo)

    def __len__(self) -> int:
        return len(self._rows)

    def prompt(self, index: int, epoch: int | str) -> Prompt:
        """The prompt of the `index`-th row that fits, with id `<epoch>/<line or row number>`."""
        row, data = self._rows[index], self._data
        own = {data.prompt_key, data.label_key}
        return Prompt(
            id=f"{epoch}/{row.number}",
            messages=prompt_messages(row, data.prompt_key),
            tokens=tuple(self._tokens[index]),
            label=None if data.label_key is None else row[data.label_key],
            metadata={key: value for key, value in row.values.items() if key not in own},
        )


def _tokenize(rows: Sequence[Row], data: DataConfig, tokenizer: Tokenizer) -> list[list[int]]:
    kwargs = data.chat_template_kwargs
    return encode(
        tokenizer,
        [render(tokenizer, prompt_messages(row, data.prompt_key), row.where, kwargs, prompt=True) for row in rows],
    )


def _too_long(row: Row, num_tokens: int, limit: int) -> SlimeError:
    what = f"the prompt has {num_tokens} tokens, more than rollout.max_prompt_tokens={limit}"
    todo = "Raise the limit, shorten the prompt, or set data.skip_long_prompts=true to leave such rows out."
    return SlimeError(what, where=row.where, todo=todo)


class PromptSource:
    """Prompts to train on, without end.

    Args:
        data: the prompt set.
        tokenizer: with a chat template.
        seed: decides every epoch's order.
        max_prompt_tokens: limit of a prompt's tokens.

    Raises:
        SlimeError: from the constructor, naming the first bad row; nothing has started by then.
    """

    def __init__(self, data: DataConfig, tokenizer: Tokenizer, seed: int, max_prompt_tokens: int) -> None:
        from slime.config.paths import resolve

        self.path = resolve(data.path)
        self.prompts = PromptSet(data, self.path, tokenizer, max_prompt_tokens)
        self._order = EpochOrder(len(self.prompts), seed, data.shuffle)

    def take(self, count: int) -> list[Prompt]:
        """The next `count` prompts."""
        return [self.prompts.prompt(row, epoch) for epoch, row in self._order.take(count)]

    def state_dict(self) -> dict[str, Any]:
        """Position and the file's content hash, as plain values."""
        return {**self._order.state_dict(), "content_hash": self.prompts.content_hash}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            SlimeError: the file holds other bytes than it did; positions in it would name other prompts.
        """
        refuse_changed_file(self.path, self.prompts.content_hash, state)
        self._order.load_state_dict(state)


def refuse_changed_file(path: Path, content_hash: str, state: Mapping[str, Any]) -> None:
    """Stop a resume whose data file is not the one the checkpoint was taken with."""
    if state["content_hash"] != content_hash:
        todo = "Put the old file back to resume, or start a new run with another run.name."
        raise SlimeError("the file changed since the checkpoint was taken", where=str(path), todo=todo)
