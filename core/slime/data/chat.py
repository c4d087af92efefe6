"""Conversations of untrusted rows through the chat template: which roles it knows, and which tokens are its alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any

from slime.config.schema import ControlTokens, DataConfig
from slime.data.tokenize import Tokenizer, UnusableTemplate, render, require_chat_template
from slime.errors import SlimeError
from slime.types import Message

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "observation", "ipython"})
"""The roles that are accepted where the template prints the name of any role unchanged."""
STRANGER = "stranger"
"""A role that no template knows: what it makes of this one shows whether it looks at names at all."""


class Chat:
    """A tokenizer's chat template, for the rows of one file.

    Attributes:
        max_token_chars: of the longest token.
        max_chars: a longer text has more than `max_tokens`, the limit of a conversation.
    """

    def __init__(self, tokenizer: Tokenizer, data: DataConfig, max_tokens: int) -> None:
        require_chat_template(tokenizer)
        self._tokenizer, self._data = tokenizer, data
        self.max_token_chars = max(map(len, tokenizer.get_vocab()))
        self.max_chars = max_tokens * self.max_token_chars
        self._known: set[tuple[tuple[str, bool], ...]] = set()

    def render(self, messages: Sequence[Message], where: str, *, prompt: bool) -> str:
        """Messages as the text that the model reads; `prompt` opens the assistant's turn at its end.

        Raises:
            SlimeError: the template refuses the messages, leaves one out, or does not know a role.
        """
        self.check_roles(messages, where)
        return render(self._tokenizer, messages, where, self._data.chat_template_kwargs, prompt=prompt)

    def check_roles(self, messages: Sequence[Message], where: str) -> None:
        """Raises SlimeError: the template leaves a message out, or does not know a role."""
        shape = tuple((message["role"], bool(message.get("content"))) for message in messages)
        if shape not in self._known:
            self._check_roles(messages, where)
            self._known.add(shape)

    def admits(self, messages: Sequence[Message], where: str) -> bool:
        """Whether the row may be used; false leaves it out (`data.control_tokens=skip`).

        Raises:
            SlimeError: a message holds a control token (`data.control_tokens=refuse`).
        """
        if self._data.control_tokens is ControlTokens.allow:
            return True
        for number, message in enumerate(messages, start=1):
            if found := next((match for text in _texts(message) if (match := self.control.search(text))), None):
                if self._data.control_tokens is ControlTokens.skip:
                    return False
                what = f"message {number} holds the control token '{found[0]}'"
                todo = "Take it out, or set data.control_tokens=skip (leave such rows out) or allow (let it act)."
                raise SlimeError(what, where=where, todo=todo)
        return True

    @cached_property
    def control(self) -> re.Pattern[str]:
        """Special tokens, and those that open a turn, which not every tokenizer calls special.

        Other added tokens (`<think>`, `<tool_call>`) are written by users and models alike.
        """
        tokens = {token.content for token in self._tokenizer.added_tokens_decoder.values() if token.special}
        turn = [{"role": "user", "content": "probe."}]
        if (text := self._try(turn)) and (prompt := self._try(turn, prompt=True)):
            opening, generation = text.partition("probe.")[0], prompt.removeprefix(text)
            tokens |= {*self._added.findall(opening)[-1:], *self._added.findall(generation)[:1]}
        return _any_of(tokens)

    @cached_property
    def _added(self) -> re.Pattern[str]:
        return _any_of({token.content for token in self._tokenizer.added_tokens_decoder.values()})

    def _check_roles(self, messages: Sequence[Message], where: str) -> None:
        """Render the same turns with other contents, and again with the role in question exchanged."""
        probes = [
            {**message, "content": f"probe {number}."} if message.get("content") else message
            for number, message in enumerate(messages, start=1)
        ]
        text = self._try(probes)
        if text is None:  # the row itself will say why
            return
        is_foreign = cache(lambda role: self._is_foreign(role, probes, text))
        for number, probe in enumerate(probes, start=1):
            role = probe["role"]
            if probe.get("content") and probe["content"] not in text:
                what = f"the chat template leaves out message {number}, of the role '{role}'"
                raise SlimeError(what, where=where, todo="Write the row as the model's template expects it.")
            if is_foreign(role):
                what = f"the chat template does not know the role '{role}' of message {number}"
                raise SlimeError(what, where=where, todo="Use the roles that the model was trained with.")

    def _is_foreign(self, role: str, probes: Sequence[Message], text: str) -> bool:
        """Whether the template wrote `role` only because it writes any: no role in use, or no token of its own."""

        def renamed(other: str) -> str | None:
            return self._try([{**probe, "role": other if probe["role"] == role else probe["role"]} for probe in probes])

        if renamed(STRANGER) != text.replace(role, STRANGER):
            return False
        users = renamed("user")
        return role not in ROLES or (users is not None and self._num_added(users) != self._num_added(text))

    def _num_added(self, text: str) -> int:
        return len(self._added.findall(text))

    def _try(self, messages: Sequence[Message], *, prompt: bool = False) -> str | None:
        try:
            return render(self._tokenizer, messages, "", self._data.chat_template_kwargs, prompt=prompt)
        except UnusableTemplate:
            raise
        except SlimeError:
            return None


def _any_of(tokens: set[str]) -> re.Pattern[str]:
    """Finds the longest of `tokens`; without any, nothing."""
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or r"(?!)")


def _texts(value: Any) -> list[str]:
    """Every text inside a JSON value: a template may write any field of a message."""
    if isinstance(value, str):
        return [value]
    parts = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value if isinstance(value, list) else []
    return [text for part in parts for text in _texts(part)]
