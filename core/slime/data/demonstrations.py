"""Supervised rows: chat messages whose last one, the assistant's answer, is learnt; or two such answers of a prompt."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from slime.config.schema import DataConfig
from slime.data.chat import Chat
from slime.data.prompt_rows import check_numbers, conversations, others
from slime.data.prompts import EpochOrder, report
from slime.data.rows import Row, read_rows
from slime.data.tokenize import Tokenizer, encode
from slime.errors import SlimeError
from slime.types import PREFERENCE, TrainSample


class DemonstrationSource:
    """Demonstrations, or pairs of answers, of one file, checked whole and tokenised, taken without end in seeded order.

    Args:
        path: rows with a `messages` column; of pairs with `chosen` and `rejected`.
        seed: decides every epoch's order.
        max_tokens: limit of a row's sequences together, answers included.
        data: keywords of the chat template, control tokens, and the prompt's column; the rest is not read.
        pairs: each row has two answers.
        limit: rows that are read, the first ones; None: all.

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
        *,
        pairs: bool = False,
        limit: int | None = None,
    ) -> None:
        if tokenizer.eos_token_id is None:
            todo = "Name it as eos_token in tokenizer_config.json."
            what = "the tokenizer has no token that ends an answer"
            raise SlimeError(what, where=str(tokenizer.name_or_path), todo=todo)
        chat = Chat(tokenizer, data, max_tokens)
        file = read_rows(path, limit=limit)
        rows, prompts, wholes = [], [], []
        for row in file.rows:
            found = conversations(row, data.prompt_key, pairs=pairs)
            texts = [chat.render(messages, row.where, prompt=False) for messages in found]
            for text in texts:
                if len(text) > chat.max_chars:  # else encoding it may take all memory
                    what = f"the demonstration has {len(text)} characters, more than the tokens of"
                    raise _too_long(row, what, max_tokens)
            if all(chat.admits(messages, row.where) for messages in found):
                rows += [row] * len(found)
                prompts += [chat.render(messages[:-1], row.where, prompt=True) for messages in found]
                wholes += texts
        ids = zip(rows, encode(tokenizer, prompts), encode(tokenizer, wholes), strict=True)
        samples = [_sample(*each, tokenizer.eos_token_id, max_tokens, data) for each in ids]
        left_out = {"with control tokens": len(file.rows) - len(rows) // (2 if pairs else 1)}
        tokens = [array("q", sample.tokens.tobytes()) for sample in samples]
        repeated = len(tokens) - len({ids.tobytes() for ids in tokens})
        report(path, tokenizer, len(file.rows), left_out, repeated, tokens)
        if not rows:
            raise SlimeError("every row is left out", where=str(path), todo="Give rows without control tokens.")
        self._rows = _paired(rows[::2], samples, max_tokens) if pairs else [[sample] for sample in samples]
        self._order = EpochOrder(path, file.content_hash, len(self._rows), seed)
        self.state_dict, self.load_state_dict = self._order.state_dict, self._order.load_state_dict
        self._places = [row.where for row in rows]

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, count: int) -> list[TrainSample]:
        """The sequences of the next `count` rows; those of a pair are one attempt, the chosen one first."""
        return _attempts([self._rows[row] for _, row in self._order.take(count)])

    def all(self) -> list[TrainSample]:
        """The sequences of every row, in the order of the file."""
        return _attempts(self._rows)

    def encoded(self) -> Iterator[tuple[str, Sequence[int]]]:
        """The place that each sequence comes from, and its ids."""
        return zip(self._places, (sample.tokens.tolist() for row in self._rows for sample in row), strict=True)

    def check_columns(self, names: Sequence[str]) -> None:
        """Refuse a row without these numbers, which the objective reads; a list has one for each token of an answer."""
        samples = (sample for row in self._rows for sample in row)
        for where, sample in zip(self._places, samples, strict=True):
            check_numbers(where, sample.row, names, 0 if PREFERENCE in sample.columns else sample.num_response_tokens)


def _attempts(rows: Sequence[Sequence[TrainSample]]) -> list[TrainSample]:
    numbered = [(number if len(row) > 1 else None, sample) for number, row in enumerate(rows) for sample in row]
    return [replace(sample, attempt=number) for number, sample in numbered]


def _sample(
    row: Row, prompt: list[int], whole: list[int], end_token: int, max_tokens: int, data: DataConfig
) -> TrainSample:
    if whole[: len(prompt)] != prompt:
        what = "the conversation's tokens do not begin with its prompt's tokens"
        todo = "The chat template writes earlier turns differently once they are answered: set the template's keywords."
        raise SlimeError(what, where=row.where, todo=todo)
    answer = up_to_end(whole[len(prompt) :], end_token)
    if len(prompt) + len(answer) > max_tokens:
        raise _too_long(row, f"the demonstration has {len(prompt) + len(answer)} tokens, more than", max_tokens)
    tokens = np.asarray(prompt + answer, dtype=np.int64)
    return TrainSample(tokens, np.ones(len(answer), dtype=np.float32), row=others(row, data, supervised=True))


def _paired(rows: Sequence[Row], samples: Sequence[TrainSample], max_tokens: int) -> list[list[TrainSample]]:
    """Chosen and rejected answers, which stand in turn, row by row."""
    found = []
    for row, chosen, rejected in zip(rows, samples[::2], samples[1::2], strict=True):
        num_tokens = chosen.num_tokens + rejected.num_tokens
        if num_tokens > max_tokens:
            raise _too_long(row, f"the pair has {num_tokens} tokens in both conversations, more than", max_tokens)
        found.append([_preferred(chosen, 1.0), _preferred(rejected, -1.0)])
    return found


def _preferred(sample: TrainSample, sign: float) -> TrainSample:
    return sample.with_columns(**{PREFERENCE: np.full(sample.num_response_tokens, sign, np.float32)})


def _too_long(row: Row, what: str, max_tokens: int) -> SlimeError:
    todo = "Shorten or delete the row, or raise train.max_tokens_per_micro_batch."
    return SlimeError(f"{what} {max_tokens}", where=row.where, todo=todo)


def up_to_end(tokens: list[int], end_token: int) -> list[int]:
    """The tokens of an answer up to and including its end token.

    Some templates write text after it (a newline between turns), which is never generated; others open the next
    turn instead of closing this one, so that the end token is missing.
    """
    if end_token not in tokens:
        return [*tokens, end_token]
    last = len(tokens) - 1 - tokens[::-1].index(end_token)
    return tokens[: last + 1]
