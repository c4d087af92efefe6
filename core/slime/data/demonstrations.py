"""Supervised demonstrations: chat messages whose last one, the assistant's answer, is learnt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slime.config.schema import DataConfig
from slime.data.chat import Chat
from slime.data.order import EpochOrder
from slime.data.prompt_rows import conversation
from slime.data.prompts import refuse_changed_file, report
from slime.data.rows import Row, read_rows
from slime.data.tokenize import Tokenizer, encode
from slime.errors import SlimeError
from slime.types import TrainSample


class DemonstrationSource:
    """Demonstrations of one file, tokenised and checked whole, taken without end in a seeded order.

    Args:
        path: jsonl or parquet with a `messages` column.
        tokenizer: with a chat template and an end-of-sequence token.
        seed: decides every epoch's order.
        max_tokens: limit of a sequence, answer included.
        data: keywords of the chat template, and what to do with control tokens; the rest is not read.

    Raises:
        SlimeError: from the constructor, naming the first bad row.
    """

    def __init__(
        self,
        path: Path,
        tokenizer: Tokenizer,
        seed: int,
        max_tokens: int,
        data: DataConfig,
    ) -> None:
        chat = Chat(tokenizer, data, max_tokens)
        file = read_rows(path)
        self.path, self._content_hash = path, file.content_hash
        rows, prompts, wholes = [], [], []
        for row in file.rows:
            messages = conversation(row)
            whole = chat.render(messages, row.where, prompt=False)
            if len(whole) > chat.max_chars:  # else encoding it may take all memory
                raise _too_long(row, f"{len(whole)} characters, more than the tokens of", max_tokens)
            if chat.admits(messages, row.where):
                rows.append(row)
                prompts.append(chat.render(messages[:-1], row.where, prompt=True))
                wholes.append(whole)
        ids = zip(rows, encode(tokenizer, prompts), encode(tokenizer, wholes), strict=True)
        self._samples = [_sample(*each, tokenizer.eos_token_id, max_tokens) for each in ids]
        left_out = {"with control tokens": len(file.rows) - len(rows)}
        report(path, tokenizer, len(file.rows), left_out, [sample.tokens for sample in self._samples])
        if not rows:
            raise SlimeError("every row is left out", where=str(path), todo="Give rows without control tokens.")
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


def _sample(row: Row, prompt: list[int], whole: list[int], end_token: int, max_tokens: int) -> TrainSample:
    if whole[: len(prompt)] != prompt:
        what = "the conversation's tokens do not begin with its prompt's tokens"
        todo = "The chat template writes earlier turns differently once they are answered: set the template's keywords."
        raise SlimeError(what, where=row.where, todo=todo)
    answer = _answer(whole[len(prompt) :], end_token)
    if len(prompt) + len(answer) > max_tokens:
        raise _too_long(row, f"{len(prompt) + len(answer)} tokens, more than", max_tokens)
    return TrainSample(np.asarray(prompt + answer, dtype=np.int64), np.ones(len(answer), dtype=np.float32))


def _too_long(row: Row, what: str, max_tokens: int) -> SlimeError:
    todo = "Shorten or delete the row, or raise train.max_tokens_per_micro_batch."
    return SlimeError(f"the demonstration has {what} {max_tokens}", where=row.where, todo=todo)


def _answer(tokens: list[int], end_token: int) -> list[int]:
    """The answer up to and including its end token.

    Some templates write text after it (a newline between turns), which is never generated; others open the next
    turn instead of closing this one, so that the end token is missing.
    """
    if end_token not in tokens:
        return [*tokens, end_token]
    last = len(tokens) - 1 - tokens[::-1].index(end_token)
    return tokens[: last + 1]
