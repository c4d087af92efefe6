"""Supervised demonstrations: chat messages whose last one, the assistant's answer, is learnt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slime.data.order import EpochOrder
from slime.data.prompts import prompt_messages, refuse_changed_file
from slime.data.rows import Row, read_rows
from slime.data.tokenize import Tokenizer, encode, render, require_chat_template
from slime.errors import SlimeError
from slime.types import TrainSample

MESSAGES_KEY = "messages"


class DemonstrationSource:
    """Demonstrations of one file, tokenised and checked whole, taken without end in a seeded order.

    Args:
        path: jsonl or parquet with a `messages` column.
        tokenizer: with a chat template and an end-of-sequence token.
        seed: decides every epoch's order.
        max_tokens: limit of a sequence, answer included.
        chat_template_kwargs: further keywords of the chat template.

    Raises:
        SlimeError: from the constructor, naming the first bad row.
    """

    def __init__(
        self,
        path: Path,
        tokenizer: Tokenizer,
        seed: int,
        max_tokens: int,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        require_chat_template(tokenizer)
        file = read_rows(path)
        self.path, self._content_hash = path, file.content_hash
        self._samples = [
            _sample(row, prompt, whole, tokenizer.eos_token_id, max_tokens)
            for row, prompt, whole in _tokenize(file.rows, tokenizer, chat_template_kwargs or {})
        ]
        self._order = EpochOrder(len(self._samples), seed, shuffle=True)

    def __len__(self) -> int:
        return len(self._samples)

    def take(self, count: int) -> list[TrainSample]:
        """The next `count` demonstrations."""
        return [self._samples[row] for _, row in self._order.take(count)]

    def state_dict(self) -> dict[str, Any]:
        """Position and the file's content hash, as plain values."""
        return {**self._order.state_dict(), "content_hash": self._content_hash}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; raises SlimeError if the file changed since."""
        refuse_changed_file(self.path, self._content_hash, state)
        self._order.load_state_dict(state)


def _tokenize(
    rows: tuple[Row, ...], tokenizer: Tokenizer, kwargs: Mapping[str, Any]
) -> zip[tuple[Row, list[int], list[int]]]:
    """Each row with the tokens of its prompt and of the whole conversation."""
    prompts, wholes = [], []
    for row in rows:
        messages = _conversation(row)
        prompts.append(render(tokenizer, messages[:-1], row.where, kwargs, prompt=True))
        wholes.append(render(tokenizer, messages, row.where, kwargs, prompt=False))
    return zip(rows, encode(tokenizer, prompts), encode(tokenizer, wholes), strict=True)


def _conversation(row: Row) -> tuple[Mapping[str, Any], ...]:
    messages = prompt_messages(row, MESSAGES_KEY)
    if len(messages) < 2 or messages[-1]["role"] != "assistant":
        todo = "A demonstration is a conversation whose last message has the role 'assistant'."
        raise SlimeError(f"'{MESSAGES_KEY}' does not end with an assistant's answer", where=row.where, todo=todo)
    return messages


def _sample(row: Row, prompt: list[int], whole: list[int], end_token: int, max_tokens: int) -> TrainSample:
    if whole[: len(prompt)] != prompt:
        what = "the conversation's tokens do not begin with its prompt's tokens"
        todo = "The chat template writes earlier turns differently once they are answered: set the template's keywords."
        raise SlimeError(what, where=row.where, todo=todo)
    answer = _answer(whole[len(prompt) :], end_token)
    if len(prompt) + len(answer) > max_tokens:
        what = f"the demonstration has {len(prompt) + len(answer)} tokens, more than {max_tokens}"
        raise SlimeError(what, where=row.where, todo="Shorten or delete the row, or raise the limit.")
    return TrainSample(np.asarray(prompt + answer, dtype=np.int64), np.ones(len(answer), dtype=np.float32))


def _answer(tokens: list[int], end_token: int) -> list[int]:
    """The answer up to and including its end token.

    Some templates write text after it (a newline between turns), which is never generated; others open the next
    turn instead of closing this one, so that the end token is missing.
    """
    if end_token not in tokens:
        return [*tokens, end_token]
    last = len(tokens) - 1 - tokens[::-1].index(end_token)
    return tokens[: last + 1]
