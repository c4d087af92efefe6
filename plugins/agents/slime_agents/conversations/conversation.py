"""Conversations of one attempt, with their exact tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slime.sampling.attempts import Answer, Model
from slime.segments import Segment
from slime.types import Message, Status, Turn
from slime_agents.conversations.chat_format import ChatFormat
from slime_agents.conversations.spelled import whole

if TYPE_CHECKING:
    from slime.conversation import Stop


class Conversations(ChatFormat):
    """A chat template that begins conversations: a `slime.conversation.Chat`."""

    def conversation(self, model: Model, messages: Sequence[Message] | None, tools: Sequence[Any]) -> Conversation:
        return Conversation(model, self, messages, tools)


class Conversation:
    """A `slime.conversation.Conversation`. With its first response it becomes a segment.

    Args:
        messages: those that it begins with; None: the prompt's.
        tools: JSON schemas that the chat template shows the model.
        begun: tokens that a branch begins with, in place of the messages, and how many it may have behind them.
    """

    def __init__(
        self,
        model: Model,
        chat: ChatFormat,
        messages: Sequence[Message] | None,
        tools: Sequence[Any],
        begun: tuple[tuple[int, ...], int] | None = None,
    ) -> None:
        self._model, self._chat, self._tools, self._branched = model, chat, tools, begun
        self._messages = None if messages is None else whole(messages)
        self._segment: Segment | None = None
        self._seed = self._limit = 0
        self._is_asking = False
        self._said: list[tuple[int, Answer]] = []

    async def turn(self, *new: Message, max_tokens: int | None = None, stop: Stop = ()) -> Turn:
        if self._is_asking:
            raise RuntimeError("turn() was called before it had returned")
        self._is_asking = True
        try:
            return await self._turn(whole(new), max_tokens, stop)
        finally:
            self._is_asking = False

    async def _turn(self, new: Sequence[Message], max_tokens: int | None, stop: Stop) -> Turn:
        model, turns = self._model, self._model.sample.turns
        written: Sequence[int] = ()
        if new and (self._segment or self._branched):
            room = self._limit if self._segment else self._branched[1] if self._branched else 0
            if self._chat.exceeds(new, room):
                return self._without_room()
            written = await self._chat.behind_aside(self._tokens, new, self._tools, room)
            model.attempts.generator.require_known(written)
        if self._segment is None:
            context, self._limit = self._branched or await self._begin(new)
            if len(written) >= self._limit:
                return self._without_room()
            self._segment, self._seed = model.begin(context)
        segment, begun = self._segment, self._num_said + len(written)
        if begun >= self._limit:
            return self._without_room()
        segment.write(written)
        turns += [dict(message) for message in new]
        limit = self._limit if max_tokens is None else min(self._limit, begun + max_tokens)
        response = await model.extend(segment, begun, limit, self._seed, stop)
        answer = model.answers[-1]
        self._said.append((len(segment.tokens), answer))
        full_text = self._chat.full_text(response, answer.text)
        turns.append({"role": "assistant", "content": full_text})
        model.go_away()
        return Turn(answer.text, model.finish, full_text, len(segment.context) + begun, len(response))

    async def count(self, *new: Message) -> int:
        new = tuple(whole(new))
        if self._segment is None and self._branched is None:
            context, _ = await self._begin(new)
            return len(context)
        limit, before = self._limit, self._num_said + (len(self._segment.context) if self._segment else 0)
        if self._branched and not self._segment:
            before, limit = len(self._branched[0]), self._branched[1]
        return before + len(await self._chat.behind_aside(self._tokens, new, self._tools, limit) if new else ())

    def branch(self, num_turns: int) -> Conversation:
        assert self._segment is not None, "a conversation that has begun"
        assert num_turns <= len(self._said), "these turns were said"
        end = self._said[num_turns - 1][0] if num_turns else 0
        context = (*self._segment.context, *self._segment.tokens[:end])
        return Conversation(self._model, self._chat, self._messages, self._tools, (context, self._limit - end))

    def take_back(self) -> None:
        assert self._segment is not None, "a conversation that has begun"
        assert self._said, "a turn was said"
        assert not self._is_asking, "the last turn is whole"
        _, answer = self._said.pop()
        self._model.forget(answer)
        self._segment.cut(self._num_said)
        if not self._said:
            self._model.drop(self._segment)

    @property
    def _num_said(self) -> int:
        """Tokens up to the end of the last turn, behind the context."""
        return self._said[-1][0] if self._said else 0

    @property
    def _tokens(self) -> Sequence[int]:
        """All up to the end of the last turn."""
        if self._segment:
            return self._segment.tokens
        return self._branched[0] if self._branched else ()

    def _without_room(self) -> Turn:
        self._model.status = Status.TRUNCATED
        return Turn("", "length")

    async def _begin(self, new: Sequence[Message]) -> tuple[tuple[int, ...], int]:
        """Tokens of the begin, and how many it may have behind them."""
        model = self._model
        prompt, context = model.sample.prompt, model.sample.prompt.tokens
        if self._messages is not None or self._tools or new:
            own = prompt.messages if self._messages is None else self._chat.escaped(self._messages)
            context = tuple(await self._chat.first_aside([*own, *self._chat.escaped(new)], self._tools))
            model.attempts.generator.require_known(context)
        return context, model.attempts.generator.limit(context)
