"""Conversations of a program with the model: the contract beside `slime.contracts.Responder`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from slime.errors import SlimeError

if TYPE_CHECKING:
    from slime.types import Message, Turn

Stop = Sequence[str] | Callable[[str], bool]


class RefusedError(SlimeError):
    """The chat template does not take these messages."""


class TooLongError(RefusedError):
    """A conversation begins with more tokens than `rollout.max_prompt_tokens`."""


class Conversation(Protocol):
    """Several turns, whose sampled tokens are never rendered again. Tokens of the program's messages have no loss."""

    async def turn(self, *new: Message, max_tokens: int | None = None, stop: Stop = ()) -> Turn:
        """Say these messages, of a user or of tools, and sample the model's response. It ends with an end token, one
        of the strings `stop` (or where that function is true of the text and of every longer one), or `max_tokens`. No
        messages: the model goes on. The whole conversation is bounded by `rollout.sampling.max_response_tokens`; where
        there is no room, the response is empty, and its `finish` is `length`. Aborts are as in `Responder.respond`.
        Raises RefusedError if the chat template refuses the messages; nothing was said then."""

    async def count(self, *new: Message) -> int:
        """Tokens before the response, if these messages were said. Raises as `turn` does."""

    def branch(self, num_turns: int) -> Conversation:
        """Another conversation, with the very tokens of the first `num_turns` turns; they have no loss there."""

    def take_back(self) -> None:
        """Forget the last turn and its messages: nobody heard it, so it is neither judged nor trained on."""


class Chat(Protocol):
    """A tokenizer's chat template, for conversations of several turns."""

    def conversation(self, model: Any, messages: Sequence[Message] | None, tools: Sequence[Any]) -> Conversation:
        """A new conversation of an attempt's `slime.sampling.attempts.Model`: see `Responder.conversation`."""

    def render(self, messages: Sequence[Message], tools: Sequence[Any], *, prompt: bool = False) -> str:
        """See `Responder.rendered`."""
