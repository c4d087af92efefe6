"""Prompt sets: validated whole before a run starts, tokenised once, then taken in a seeded order over epochs."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slime.config.schema import DataConfig, Repeated
from slime.data.encoded import encode_prompts
from slime.data.order import EpochOrder
from slime.data.prompt_rows import asked, check_numbers, others
from slime.data.repeated import FirstTime
from slime.data.rows import read_rows
from slime.data.tokenize import Tokenizer
from slime.errors import SlimeError
from slime.types import Prompt

log = logging.getLogger(__name__)
MANY_REPEAT = 0.5
"""More of the rows than this repeat an earlier one: such a file was hardly meant so."""


class PromptSet:
    """Every prompt of a data set that fits, tokenised.

    Args:
        data: keys, template keywords and what to do with long prompts; `data.path` is not read.
        path: its file or folder, or a pattern of files.
        tokenizer: with a chat template.
        max_prompt_tokens: limit of a prompt's tokens, generation prompt included.
        name: of the set (`Prompt.set`).

    Attributes:
        content_hash: of the file's bytes.
        num_repeated: rows left out because an earlier one has their prompt and label (`data.repeated=once`).
        num_long: prompts left out because they were too long (`data.skip_long_prompts`).
        num_control: prompts left out because they hold control tokens (`data.control_tokens=skip`).
    """

    def __init__(
        self, data: DataConfig, path: Path, tokenizer: Tokenizer, max_prompt_tokens: int, name: str = ""
    ) -> None:
        is_new = FirstTime(data)
        file = read_rows(path, is_new if data.repeated is Repeated.once else None)
        self.num_repeated, repeated = file.num_rows - len(file.rows), 0
        if data.repeated is Repeated.keep:
            repeated = len(file.rows) - sum(map(is_new, file.rows))
            if repeated > MANY_REPEAT * file.num_rows:  # told before they are tokenised, which may take minutes
                what = "%s: %s rows hold %s different prompts: set data.repeated=once, if no other column matters"
                log.warning(what, path, f"{file.num_rows:,}", f"{file.num_rows - repeated:,}")
                repeated = 0
        found = encode_prompts(file.rows, data, tokenizer, max_prompt_tokens)
        self._data, self._name, self.content_hash = data, name, file.content_hash
        self._rows, self._tokens = found.rows, found.tokens
        self.num_long, self.num_control = found.num_long, found.num_control
        left_out = {
            "prompt and label of an earlier one": self.num_repeated,
            f"longer than {max_prompt_tokens} tokens": self.num_long,
            "with control tokens": self.num_control,
        }
        report(path, tokenizer, file.num_rows, left_out, repeated, self._tokens)
        if not self._rows:
            todo = "Raise rollout.max_prompt_tokens or give other prompts."
            raise SlimeError("every prompt is left out", where=str(path), todo=todo)

    def __len__(self) -> int:
        return len(self._rows)

    def encoded(self) -> Iterator[tuple[str, Sequence[int]]]:
        """Where each prompt comes from, and its ids."""
        return zip((row.where for row in self._rows), self._tokens, strict=True)

    def check_columns(self, names: Sequence[str]) -> None:
        """Refuse a row without these numbers, which the objective reads."""
        for row in self._rows:
            check_numbers(row.where, others(row, self._data), names)

    def prompt(self, index: int, epoch: int | str) -> Prompt:
        """The prompt of the `index`-th row that fits, with id `<epoch>/<line or row number>`, behind the name of the
        set if it has one."""
        row, data = self._rows[index], self._data
        return Prompt(
            id="/".join(filter(None, (self._name, str(epoch), str(row.number)))),
            messages=asked(row, data),
            tokens=tuple(self._tokens[index]),
            label=None if data.label_key is None else row[data.label_key],
            metadata=others(row, data),
            set=self._name,
        )


def report(
    path: Path,
    tokenizer: Tokenizer,
    num_rows: int,
    left_out: Mapping[str, int],
    repeated: int,
    tokens: Sequence[array[int] | NDArray[np.int64]],
) -> None:
    """Log in one line what differs from the file: rows left out, repeated rows, unknown characters."""
    notes = [f"{count} of {num_rows} rows left out ({reason})" for reason, count in left_out.items() if count]
    if repeated:
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
        name: of the set.

    Raises:
        SlimeError: from the constructor, naming the first bad row; nothing has started by then.
    """

    def __init__(
        self, data: DataConfig, tokenizer: Tokenizer, seed: int, max_prompt_tokens: int, name: str = ""
    ) -> None:
        from slime.config.paths import resolve_rows

        self.path = resolve_rows(data.path)
        self.prompts = PromptSet(data, self.path, tokenizer, max_prompt_tokens, name)
        self._order = EpochOrder(len(self.prompts), seed, data.shuffle)

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def num_taken(self) -> int:
        """Prompts taken so far."""
        return self._order.num_taken

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
