"""Prompts as token ids, those left out that a run does not take."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from slime.config.schema import DataConfig
from slime.data.chat import Chat
from slime.data.prompt_rows import asked, check_prompts
from slime.data.rows import Row
from slime.data.tokenize import Tokenizer, encode
from slime.errors import SlimeError


@dataclass
class Encoded:
    """The prompts that fit.

    Attributes:
        tokens: of each row.
        num_long: prompts left out because they were too long (`data.skip_long_prompts`).
        num_control: prompts left out because they hold control tokens (`data.control_tokens=skip`).
    """

    rows: list[Row] = field(default_factory=list)
    tokens: list[array[int]] = field(default_factory=list)
    num_long: int = 0
    num_control: int = 0


def encode_prompts(rows: Sequence[Row], data: DataConfig, tokenizer: Tokenizer, max_prompt_tokens: int) -> Encoded:
    """Check and encode the rows of a prompt set.

    Args:
        max_prompt_tokens: limit of a prompt's tokens, generation prompt included.

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
