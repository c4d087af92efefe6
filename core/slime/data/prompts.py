"""Prompt sets: validated whole before a run starts, tokenised once, then taken in a seeded order over epochs."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slime.config.schema import DataConfig
from slime.data.chat import Chat
from slime.data.order import EpochOrder
from slime.data.prompt_rows import check_prompts, prompt_messages
from slime.data.rows import Row, read_rows
from slime.data.tokenize import Tokenizer, encode
from slime.errors import SlimeError
from slime.types import Prompt

log = logging.getLogger(__name__)


class PromptSet:
    """Every prompt of one file that fits, tokenised.

    Args:
        data: keys, template keywords and what to do with long prompts; `data.path` is not read.
        path: the file.
        tokenizer: with a chat template.
        max_prompt_tokens: limit of a prompt's tokens, generation prompt included.

    Attributes:
        content_hash: of the file's bytes.
        num_long: prompts left out because they were too long (`data.skip_long_prompts`).
        num_control: prompts left out because they hold control tokens (`data.control_tokens=skip`).
    """

    def __init__(self, data: DataConfig, path: Path, tokenizer: Tokenizer, max_prompt_tokens: int) -> None:
        chat = Chat(tokenizer, data, max_prompt_tokens)
        file = read_rows(path)
        check_prompts(file.rows, data)
        self._data, self.content_hash = data, file.content_hash
        self.num_long = self.num_control = 0
        rows, texts = [], []
        for row in file.rows:
            messages = prompt_messages(row, data.prompt_key)
            text = chat.render(messages, row.where, prompt=True)
            if len(text) > chat.max_chars:  # else encoding it may take all memory
                self._leave_out(row, f"{len(text)} characters, more than the tokens of", max_prompt_tokens)
            elif chat.admits(messages, row.where):
                rows.append(row)
                texts.append(text)
            else:
                self.num_control += 1
        self._rows: list[Row] = []
        self._tokens: list[array[int]] = []
        for row, tokens in zip(rows, encode(tokenizer, texts), strict=True):
            if len(tokens) > max_prompt_tokens:
                self._leave_out(row, f"{len(tokens)} tokens, more than", max_prompt_tokens)
            else:
                self._rows.append(row)
                self._tokens.append(array("i", tokens))
        left_out = {f"longer than {max_prompt_tokens} tokens": self.num_long, "with control tokens": self.num_control}
        report(path, tokenizer, len(file.rows), left_out, self._tokens)
        if not self._rows:
            todo = "Raise rollout.max_prompt_tokens or give other prompts."
            raise SlimeError("every prompt is left out", where=str(path), todo=todo)

    def _leave_out(self, row: Row, what: str, max_prompt_tokens: int) -> None:
        if not self._data.skip_long_prompts:
            what = f"the prompt has {what} rollout.max_prompt_tokens={max_prompt_tokens}"
            todo = "Raise the limit, shorten the prompt, or set data.skip_long_prompts=true to leave such rows out."
            raise SlimeError(what, where=row.where, todo=todo)
        self.num_long += 1

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


def report(
    path: Path,
    tokenizer: Tokenizer,
    num_rows: int,
    left_out: Mapping[str, int],
    tokens: Sequence[array[int] | NDArray[np.int64]],
) -> None:
    """Log in one line what differs from the file: rows left out, repeated rows, unknown characters."""
    notes = [f"{count} of {num_rows} rows left out ({reason})" for reason, count in left_out.items() if count]
    if repeated := len(tokens) - len({ids.tobytes() for ids in tokens}):
        notes.append(f"{repeated} rows repeat an earlier one")
    unknown = tokenizer.unk_token_id
    if unknown not in (None, tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id):
        counts = [np.count_nonzero(np.asarray(ids) == unknown) for ids in tokens]
        if rows := sum(map(bool, counts)):
            notes.append(f"{sum(counts)} characters in {rows} rows became '{tokenizer.unk_token}'")
    if notes:
        log.warning("%s: %s", path, "; ".join(notes))


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
