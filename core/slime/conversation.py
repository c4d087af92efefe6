"""What a program holds several turns with: the contract beside `slime.contracts.Responder`."""

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
    """Keeps its tokens: what was sampled is never rendered again, and what the program says has no loss."""

    async def turn(self, *new: Message, max_tokens: int | None = None, stop: Stop = ()) -> Turn:
        """Say these messages, of a user or of tools, and sample the model's response to its end: an end token, one of
        the strings `stop`, or where that function says so of the text and of every longer one; or `max_tokens`. No
        messages: the model goes on. The whole conversation is bounded by `rollout.sampling.max_response_tokens`; where
        there is no room, the response is empty, and its `finish` is `length`. Aborts are as in `Responder.respond`.

        Raises:
            RefusedError: the chat template refuses the messages; nothing was said then.
        """

    async def count(self, *new: Message) -> int:
        """Tokens that would stand before the response, if these messages were said. Raises as `turn` does."""

    def branch(self, num_turns: int) -> Conversation:
        """Another conversation, which goes on behind the first turns of this one, as many as `num_turns`. It has their
        very tokens; they are trained on here, and have no loss there."""

    def take_back(self) -> None:
        """Forget the last turn, and what was said before it: nobody heard it, so it is neither judged nor trained
        on."""


class Chat(Protocol):
    """A tokenizer's chat template, for conversations of several turns."""

    def conversation(self, model: Any, messages: Sequence[Message] | None, tools: Sequence[Any]) -> Conversation:
        """A new conversation of an attempt's `slime.sampling.attempts.Model`: see `Responder.conversation`."""

    def render(self, messages: Sequence[Message], tools: Sequence[Any], *, prompt: bool = False) -> str:
        """What the template writes for these messages; `prompt` opens the model's turn behind them."""
