"""Prompt sets: validated whole before a run starts, tokenised once, then taken in a seeded order over epochs. No numpy:
the plan looks at prompts, too."""

from __future__ import annotations

import dataclasses
import json
import logging
import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from slime.config.paths import resolve_rows
from slime.config.schema import DataConfig, EvalConfig, EvalSetConfig, Repeated, SetConfig
from slime.data.chat import Chat
from slime.data.prompt_rows import asked, check_numbers, check_prompts, is_text, others
from slime.data.rows import Row, read_rows
from slime.data.tokenize import Tokenizer, encode
from slime.errors import SlimeError
from slime.types import Prompt

log = logging.getLogger(__name__)
MANY_REPEAT = 0.5
"""More of the rows than this repeat an earlier one: such a file was hardly meant so."""


def data_of(data: DataConfig, own: SetConfig) -> DataConfig:
    """How the rows of a named set are read."""
    keys = {key: getattr(own, key) for key in ("path", "source", "prompt_key", "label_key", "system_prompt", "limit")}
    return dataclasses.replace(data, sets={}, **keys)


@dataclass(frozen=True)
class HeldOut:
    """One held-out set: its name, empty for that of `eval.path`; samples a prompt, and their sampling; its prompts."""

    name: str
    cfg: EvalConfig | EvalSetConfig
    prompts: Sequence[Prompt]


@dataclass
class Encoded:
    """The prompts that fit, and how many are left out because they were too long (`data.skip_long_prompts`) or hold
    control tokens (`data.control_tokens=skip`)."""

    rows: list[Row] = field(default_factory=list)
    tokens: list[array[int]] = field(default_factory=list)
    num_long: int = 0
    num_control: int = 0

    def encoded(self) -> Iterator[tuple[str, Sequence[int]]]:
        """The place that each prompt comes from, and its ids."""
        return zip((row.where for row in self.rows), self.tokens, strict=True)


def encode_prompts(rows: Sequence[Row], data: DataConfig, tokenizer: Tokenizer, max_prompt_tokens: int) -> Encoded:
    """Check and encode the rows of a prompt set; the generation prompt counts in `max_prompt_tokens`.

    Raises:
        SlimeError: the first bad row.
    """
    check_prompts(rows, data)
    chat, found = Chat(tokenizer, data, max_prompt_tokens), Encoded()
    kept, texts = [], []
    for row in rows:
        messages = asked(row, data)
        text = chat.render(messages, row.where, prompt=True)
        if len(text) > chat.max_chars:  # else encoding it may take all memory
            _refuse_long(data, row, f"{len(text)} characters, more than the tokens of", max_prompt_tokens)
            found.num_long += 1
        elif chat.admits(messages, row.where):
            kept.append(row)
            texts.append(text)
        else:
            found.num_control += 1
    for row, tokens in zip(kept, encode(tokenizer, texts), strict=True):
        if len(tokens) > max_prompt_tokens:
            _refuse_long(data, row, f"{len(tokens)} tokens, more than", max_prompt_tokens)
            found.num_long += 1
        else:
            found.rows.append(row)
            found.tokens.append(array("i", tokens))
    return found


def _refuse_long(data: DataConfig, row: Row, what: str, max_prompt_tokens: int) -> None:
    if not data.skip_long_prompts:
        what = f"the prompt has {what} rollout.max_prompt_tokens={max_prompt_tokens}"
        todo = "Raise the limit, shorten the prompt, or set data.skip_long_prompts=true to leave such rows out."
        raise SlimeError(what, where=row.where, todo=todo)


class PromptSet:
    """Every prompt of a data set that fits, tokenised.

    Args:
        data: keys, template keywords and what to do with long prompts; `data.path` is not read.
        path: its file or folder, or a pattern of files.
        name: of the set (`Prompt.set`).

    Attributes:
        num_repeated: rows left out because an earlier one has their prompt and label (`data.repeated=once`).
        found: the prompts.
    """

    def __init__(
        self, data: DataConfig, path: Path, tokenizer: Tokenizer, max_prompt_tokens: int, name: str = ""
    ) -> None:
        is_new = FirstTime(data)
        file = read_rows(path, is_new if data.repeated is Repeated.once else None, data.limit)
        self.num_repeated, repeated = file.num_rows - len(file.rows), 0
        if data.repeated is Repeated.keep:
            repeated = len(file.rows) - sum(map(is_new, file.rows))
            if repeated > MANY_REPEAT * file.num_rows:  # told before they are tokenised, which may take minutes
                what = "%s: %s rows hold %s different prompts: set data.repeated=once, if no other column matters"
                log.warning(what, path, f"{file.num_rows:,}", f"{file.num_rows - repeated:,}")
                repeated = 0
        self._data, self._name, self.content_hash = data, name, file.content_hash
        self.found = encode_prompts(file.rows, data, tokenizer, max_prompt_tokens)
        left_out = {
            "prompt and label of an earlier one": self.num_repeated,
            f"longer than {max_prompt_tokens} tokens": self.found.num_long,
            "with control tokens": self.found.num_control,
        }
        report(path, tokenizer, file.num_rows, left_out, repeated, self.found.tokens)
        if not self.found.rows:
            todo = "Raise rollout.max_prompt_tokens or give other prompts."
            raise SlimeError("every prompt is left out", where=str(path), todo=todo)

    def __len__(self) -> int:
        return len(self.found.rows)

    def check_columns(self, names: Sequence[str]) -> None:
        """Refuse a row without these numbers, which the objective reads."""
        for row in self.found.rows:
            check_numbers(row.where, others(row, self._data), names)

    def prompt(self, index: int, epoch: int | str) -> Prompt:
        """The prompt of the `index`-th row that fits, with id `<epoch>/<line or row number>`, behind the name of the
        set if it has one."""
        row, data = self.found.rows[index], self._data
        return Prompt(
            id="/".join(filter(None, (self._name, str(epoch), str(row.number)))),
            messages=asked(row, data),
            tokens=tuple(self.found.tokens[index]),
            label=None if data.label_key is None else row[data.label_key],
            metadata=others(row, data),
            set=self._name,
            is_text=is_text(row, data.prompt_key),
        )


def report(
    path: Path,
    tokenizer: Tokenizer,
    num_rows: int,
    left_out: Mapping[str, int],
    repeated: int,
    tokens: list[array[int]],
) -> None:
    """Log in one line what differs from the file: rows left out, repeated rows, unknown characters."""
    notes = [f"{count} of {num_rows} rows left out ({reason})" for reason, count in left_out.items() if count]
    if repeated:
        notes.append(f"{repeated} rows repeat an earlier one")
    unknown = tokenizer.unk_token_id
    if unknown not in (None, tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id):
        counts = [ids.count(unknown) for ids in tokens]
        if rows := sum(map(bool, counts)):
            notes.append(f"{sum(counts)} characters in {rows} rows became '{tokenizer.unk_token}'")
    if notes:
        log.warning("%s: %s", path, "; ".join(notes))


class EpochOrder:
    """An endless walk over `num_rows` rows, each epoch in an order of its own that only the seed decides.

    Args:
        path, content_hash: of the rows; a walk goes on over the same ones only.
        shuffle: off keeps the file's order in every epoch.
    """

    def __init__(self, path: Path, content_hash: str, num_rows: int, seed: int, shuffle: bool = True) -> None:
        assert num_rows > 0, "an epoch has rows"
        self._path, self._content_hash = path, content_hash
        self._num_rows, self._seed, self._shuffle = num_rows, seed, shuffle
        self._epoch = self._position = 0
        self._order = self._epoch_order()

    @property
    def num_taken(self) -> int:
        """Rows taken so far."""
        return self._epoch * self._num_rows + self._position

    def take(self, count: int) -> list[tuple[int, int]]:
        """The next `count` pairs (epoch, row index)."""
        return [self._next() for _ in range(count)]

    def state_dict(self) -> dict[str, Any]:
        """Position and the file's content hash, as plain values."""
        return {"epoch": self._epoch, "position": self._position, "content_hash": self._content_hash}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            SlimeError: the file holds other bytes than it did; positions in it would name other rows.
        """
        if state["content_hash"] != self._content_hash:
            todo = "Put the old file back to resume, or start a new run with another run.name."
            raise SlimeError("the file changed since the checkpoint was taken", where=str(self._path), todo=todo)
        self._epoch, self._position = state["epoch"], state["position"]
        self._order = self._epoch_order()

    def _next(self) -> tuple[int, int]:
        if self._position == self._num_rows:
            self._epoch, self._position = self._epoch + 1, 0
            self._order = self._epoch_order()
        self._position += 1
        return self._epoch, self._order[self._position - 1]

    def _epoch_order(self) -> list[int]:
        order = list(range(self._num_rows))
        if self._shuffle:
            random.Random(f"{self._seed}/{self._epoch}").shuffle(order)
        return order


class PromptSource:
    """Prompts of one set to train on, without end; arguments as of `PromptSet`, and the seed of every epoch's order.

    Raises:
        SlimeError: from the constructor, naming the first bad row; nothing has started by then.
    """

    def __init__(
        self, data: DataConfig, tokenizer: Tokenizer, seed: int, max_prompt_tokens: int, name: str = ""
    ) -> None:
        self.path = resolve_rows(data.path)
        self.prompts = PromptSet(data, self.path, tokenizer, max_prompt_tokens, name)
        self.order = EpochOrder(self.path, self.prompts.content_hash, len(self.prompts), seed, data.shuffle)
        self.state_dict, self.load_state_dict = self.order.state_dict, self.order.load_state_dict

    def __len__(self) -> int:
        return len(self.prompts)

    def take(self, count: int) -> list[Prompt]:
        """The next `count` prompts."""
        return [self.prompts.prompt(row, epoch) for epoch, row in self.order.take(count)]


class FirstTime:
    """Tells a row whose prompt and label no row before had; asked of each row of a set once, in the file's order."""

    def __init__(self, data: DataConfig) -> None:
        self._keys = [key for key in (data.prompt_key, data.label_key) if key is not None]
        self._seen: set[bytes] = set()

    def __call__(self, row: Row) -> bool:
        try:
            values = [row[key] for key in self._keys]
        except SlimeError:  # a column is missing: whoever checks the rows tells
            return True
        text = json.dumps(values, sort_keys=True, default=repr, ensure_ascii=False)
        num_seen = len(self._seen)
        self._seen.add(blake2b(text.encode(), digest_size=16).digest())
        return len(self._seen) > num_seen
