"""Conversations of several turns as tokens: what the model sampled is never rendered again, only what comes behind it.

A chat template writes earlier turns otherwise once they are answered (it drops thinking, or spells arguments its own
way). So new messages are rendered behind a made-up turn, and their tokens are appended to what was sampled.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import groupby
from typing import Any

from slime.config.schema import DataConfig
from slime.conversation import RefusedError, TooLongError
from slime.data.chat import Chat
from slime.data.tokenize import BATCH, Tokenizer, decode, encode, end_tokens, render
from slime.errors import SlimeError
from slime.sampling.attempts import Model
from slime.types import Message
from slime_agents.conversations.conversation import Conversation
from slime_agents.conversations.spelled import RESULT_ROLES, is_in, left_out, spellings

SAID = "probe."
LONG = 20_000
"""Characters that are encoded within ten milliseconds."""
_WHERE = "the chat template"
_MOST_KEPT = 256
"""Made-up conversations whose texts are kept, and kinds of them that are kept as refused."""


class ChatFormat:
    """A tokenizer's chat template, for conversations of several turns: a `slime.conversation.Chat`.

    Args:
        data: keywords of the template.
        max_prompt_tokens: limit of the begin of a conversation.
    """

    def __init__(self, tokenizer: Tokenizer, data: DataConfig, max_prompt_tokens: int) -> None:
        self._tokenizer, self._data, self._max_prompt_tokens = tokenizer, data, max_prompt_tokens
        self._end_tokens = end_tokens(tokenizer)
        self._bases: dict[str, str | SlimeError] = {}
        self._refused: dict[str, SlimeError] = {}

    def conversation(self, model: Model, messages: Sequence[Message] | None, tools: Sequence[Any]) -> Conversation:
        return Conversation(model, self, messages, tools)

    def first(self, messages: Sequence[Message], tools: Sequence[Any]) -> list[int]:
        """Token ids of a conversation that the model is to answer.

        Args:
            tools: JSON schemas of functions, as in the OpenAI API.

        Raises:
            RefusedError: the template refuses the messages, or leaves one out.
            TooLongError: they are too long.
        """
        text = self._first_text(messages, tools)
        return self._fitting(self._encoded(text))

    async def first_aside(self, messages: Sequence[Message], tools: Sequence[Any]) -> list[int]:
        """Do as `first`, but encode long texts in a thread, which leaves the event loop to others."""
        text = self._first_text(messages, tools)
        return self._fitting(await self._encoded_aside(text, self._max_prompt_tokens))

    def _first_text(self, messages: Sequence[Message], tools: Sequence[Any]) -> str:
        if self.exceeds(messages, self._max_prompt_tokens):
            raise self._too_long(f"more than {self._max_prompt_tokens}", "")
        with _refusals():
            return self._begun(messages, tools)

    def _fitting(self, ids: list[int]) -> list[int]:
        if len(ids) > self._max_prompt_tokens:
            raise self._too_long(str(len(ids)), f" to {len(ids)} or more")
        return ids

    @staticmethod
    def _too_long(count: str, to: str) -> TooLongError:
        what = f"a conversation begins with {count} tokens, tools included"
        return TooLongError(what, where="rollout.max_prompt_tokens", todo=f"Raise it{to}.")

    def exceeds(self, messages: Sequence[Message], max_tokens: int) -> bool:
        """Messages have more tokens for certain, which is found without encoding them: none has less than one, and no
        token has more characters than the longest."""
        if len(messages) > max_tokens:
            return True
        return sum(len(message.get("content") or "") for message in messages) > max_tokens * self._chat.max_token_chars

    def behind(self, tokens: Sequence[int], new: Sequence[Message], tools: Sequence[Any]) -> list[int]:
        """Token ids behind a response: the end of its turn where the model did not write it, the new messages, and the
        opening of the model's next turn. Special tokens in the new messages are broken up, so that they cannot act.

        Args:
            tokens: the conversation up to and with the response.

        Raises:
            RefusedError: the template refuses or leaves out a message, or writes what came before otherwise.
        """
        return self._unwritten(tokens, self._encoded(self._behind_text(new, tools)))

    async def behind_aside(
        self, tokens: Sequence[int], new: Sequence[Message], tools: Sequence[Any], max_tokens: int
    ) -> list[int]:
        """As `behind`; long texts are encoded in a thread. Of a text with more than `max_tokens` tokens, more than
        `max_tokens` are returned, and maybe not all."""
        text = self._behind_text(new, tools)
        return self._unwritten(tokens, await self._encoded_aside(text, max_tokens))

    def _behind_text(self, new: Sequence[Message], tools: Sequence[Any]) -> str:
        with _refusals():
            return self._closing + self._added(self.escaped(new), tools)

    def _unwritten(self, tokens: Sequence[int], ids: list[int]) -> list[int]:
        written = bool(tokens) and tokens[-1] in self._end_tokens and ids[:1] == [tokens[-1]]
        return ids[written:]

    def full_text(self, response: Sequence[int], text: str) -> str:
        """Text of a response with its special tokens, but for the one that ends it; `text` is without them."""
        has_end = bool(response) and response[-1] in self._end_tokens
        said = response[:-1] if has_end else response
        if self._special.isdisjoint(said) and (not has_end or response[-1] in self._special):
            return text
        return decode(self._tokenizer, said)

    @cached_property
    def _special(self) -> frozenset[int]:
        """Tokens that decoding can leave out."""
        added = self._tokenizer.added_tokens_decoder.items()
        return frozenset({*self._tokenizer.all_special_ids, *(number for number, token in added if token.special)})

    def _begun(self, messages: Sequence[Message], tools: Sequence[Any]) -> str:
        """Text of a conversation that the model is to answer, with calls and results as the template knows them."""
        problem = None
        if any(message.get("tool_calls") for message in messages) and not self._writes_calls:
            what, todo = "the chat template writes no calls of tools", "Write them as the model does, as its words."
            raise SlimeError(what, where=self._tokenizer.name_or_path or _WHERE, todo=todo)
        for known in spellings(messages):
            try:
                text = self.render(known, tools, prompt=True)
            except SlimeError as error:
                problem = problem or error
                continue
            missing = left_out(known, text)
            if missing is None:
                return text
            what = f"the chat template leaves out message {missing}, of the role '{messages[missing - 1]['role']}'"
            todo = "Write the messages as the model's template expects them."
            problem = problem or SlimeError(what, where=self._tokenizer.name_or_path or _WHERE, todo=todo)
        assert problem, "some spelling was tried"
        raise problem

    @cached_property
    def _writes_calls(self) -> bool:
        for arguments in (dict[str, Any](), "{}"):
            call = {"type": "function", "id": "call00001", "function": {"name": "probe_tool", "arguments": arguments}}
            said: list[Message] = [
                {"role": "user", "content": SAID},
                {"role": "assistant", "content": "", "tool_calls": [call]},
            ]
            with suppress(SlimeError):
                return "probe_tool" in self.render(said, ())
        return False

    def _added(self, new: Sequence[Message], tools: Sequence[Any]) -> str:
        runs = [list(run) for _, run in groupby(new, key=lambda message: message["role"] in RESULT_ROLES)]
        return "".join(self._behind_made_up(run, tools, prompt=run is runs[-1]) for run in runs)

    def _behind_made_up(self, run: Sequence[Message], tools: Sequence[Any], *, prompt: bool) -> str:
        """Text that the template adds to a conversation for messages of one kind."""
        problem = None
        for before, renamed in self._made_up(run):
            refused = self._roles_problem([*before, *renamed])
            base = refused or self._base(before, tools)
            if isinstance(base, SlimeError):
                problem = problem or base
                continue
            try:
                said = [*before, *renamed]
                whole = self.render(said, tools, prompt=True) if prompt else self._unended(said, tools)
            except SlimeError as error:
                problem = problem or error
                continue
            added = whole.removeprefix(base)
            if whole.startswith(base) and all(is_in(message, added) for message in renamed):
                return added
            problem = problem or self._differs(base, whole, run)
        assert problem, "some conversation was tried"
        raise problem.with_traceback(None)

    def _roles_problem(self, messages: Sequence[Message]) -> SlimeError | None:
        """The reason why the template has no place for these roles. It is kept: to find it takes five renderings, and a
        template without a role for tools refuses some of the same at every turn."""
        kind = repr(_but_for_words(list(messages))) if self._refused else ""
        if kind in self._refused:
            return self._refused[kind]
        try:
            self._chat.check_roles(messages, _WHERE)
        except SlimeError as error:
            if len(self._refused) == _MOST_KEPT:
                self._refused.clear()
            self._refused[kind or repr(_but_for_words(list(messages)))] = error
            return error
        return None

    def _base(self, before: Sequence[Message], tools: Sequence[Any]) -> str | SlimeError:
        """Text of a made-up conversation, or why the template refuses it."""
        name = json.dumps([before, tools])
        if name not in self._bases:
            try:
                found: str | SlimeError = self._unended(before, tools)
            except SlimeError as error:
                found = error
            if len(self._bases) == _MOST_KEPT:
                self._bases.clear()
            self._bases[name] = found
        return self._bases[name]

    def _unended(self, messages: Sequence[Message], tools: Sequence[Any]) -> str:
        """Text of a conversation that goes on: without the end token that some templates, as Phi-3.5's, add."""
        text, end = self.render(messages, tools), self._tokenizer.eos_token
        if not end or not text.endswith(end):
            return text
        opened = self.render(messages, tools, prompt=True)
        unended = text.removesuffix(end)
        return unended if opened.startswith(unended) and not opened.startswith(text) else text

    def _differs(self, base: str, whole: str, run: Sequence[Message]) -> SlimeError:
        """A fault that says which token the template would write otherwise than before."""
        role = run[0]["role"]
        if whole.startswith(base):
            what = f"the chat template leaves out a message of the role '{role}'"
        else:
            before, after = self._encoded(base), self._encoded(whole)
            place = next(i for i, pair in enumerate(zip(before, [*after, None], strict=False)) if pair[0] != pair[1])
            was, now = (decode(self._tokenizer, ids[place : place + 1]) for ids in (before, after))
            what = f"the chat template writes token {place} as {now!r}, and not {was!r}, once the role '{role}' follows"
        todo = "Use a template that only adds to a conversation when a message is added."
        return SlimeError(what, where=self._tokenizer.name_or_path or _WHERE, todo=todo)

    @staticmethod
    def _made_up(run: Sequence[Message]) -> Iterator[tuple[list[Message], list[Message]]]:
        """Conversations to render `run` behind, the likeliest first, each with `run` as it is written there."""
        user: Message = {"role": "user", "content": SAID}
        answer: Message = {"role": "assistant", "content": SAID}
        if run[0]["role"] not in RESULT_ROLES:
            for start in ([{"role": "system", "content": SAID}, user], [user, answer], [user]):
                yield start, list(run)
            return
        for arguments in (dict[str, Any](), "{}"):
            calls = [
                {"type": "function", "id": message.get("tool_call_id", f"call_{number}"),
                 "function": {"name": message.get("name", "probe"), "arguments": arguments}}
                for number, message in enumerate(run)
            ]  # fmt: skip
            called: Message = {"role": "assistant", "content": "", "tool_calls": calls}
            yield [user, called], list(run)
            # Qwen3's template opens the last turn with thinking, be it empty, and others only where there is some.
            yield [user, {**called, "reasoning_content": SAID}], list(run)
        for role in RESULT_ROLES:
            yield [user, answer], [{**message, "role": role} for message in run]

    @cached_property
    def _closing(self) -> str:
        """The template's text behind the words of a finished turn of the model."""
        text = self._unended([{"role": "user", "content": SAID}, {"role": "assistant", "content": "the answer."}], ())
        return text.rpartition("the answer.")[2]

    @cached_property
    def _chat(self) -> Chat:
        return Chat(self._tokenizer, self._data, self._max_prompt_tokens)

    def escaped(self, value: Any) -> Any:
        """Messages, or any other JSON value, with the special tokens in its texts broken up by a space."""
        if isinstance(value, str):
            return self._chat.control.sub(lambda found: f"{found[0][0]} {found[0][1:]}", value)
        if isinstance(value, Mapping):
            return {name: self.escaped(each) for name, each in value.items()}
        return [self.escaped(each) for each in value] if isinstance(value, list | tuple) else value

    def render(self, messages: Sequence[Message], tools: Sequence[Any], *, prompt: bool = False) -> str:
        """Messages as the text that the model reads; `prompt` opens the model's turn at its end.

        Raises:
            SlimeError: the template refuses the messages.
        """
        own = self._data.chat_template_kwargs
        kwargs = {**own, "tools": list(tools)} if tools else own
        return render(self._tokenizer, messages, _WHERE, kwargs, prompt=prompt)

    def _encoded(self, text: str) -> list[int]:
        [ids] = encode(self._tokenizer, [text])
        return list(ids)

    async def _encoded_aside(self, text: str, max_tokens: int) -> list[int]:
        if len(text) <= LONG:
            return self._encoded(text)
        return await asyncio.to_thread(self._encoded_up_to, text, max_tokens)

    def _encoded_up_to(self, text: str, max_tokens: int) -> list[int]:
        """A text's tokens; or, of a much longer one, more than `max_tokens` from its begin: it is counted by pieces
        first, because encoding takes some hundred bytes a token."""
        counted, most = list[int](), max_tokens + max_tokens // 100 + 1000  # because a cut may add some
        if len(text) > 2 * most:
            for begin in range(0, len(text), BATCH):
                counted += self._encoded(text[begin : begin + BATCH])
                if len(counted) > most:
                    return counted
        return self._encoded(text)


def _but_for_words(value: Any) -> Any:
    """A JSON value without words and ids of calls, which no template distinguishes."""
    if isinstance(value, dict):
        said = ("content", "id", "tool_call_id")
        return {name: bool(each) if name in said else _but_for_words(each) for name, each in value.items()}
    return [_but_for_words(each) for each in value] if isinstance(value, list) else value


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except SlimeError as error:
        raise RefusedError(error.what, where=error.where, todo=error.todo) from error
