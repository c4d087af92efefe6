"""What a program asks the model through: responses and conversations of one attempt, with their exact tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from slime.errors import SlimeError
from slime.sampling.generate import sampling_seed
from slime.sampling.guarded import REASON
from slime.sampling.programs import no_kit
from slime.sampling.suspended import Suspended
from slime.segments import Segment
from slime.types import Finish, Message, Sample, Status, Turn

if TYPE_CHECKING:
    from slime.conversation import Chat, Conversation, Stop
    from slime.sampling.held import TimeLimit
    from slime.sampling.requests import Requests


class Answer(NamedTuple):
    """A whole response: how it ended, and its text."""

    status: Status
    text: str


class Model:
    """A `slime.contracts.Responder`.

    Args:
        attempts: what this one is one of.
        limit: of what the program takes of its own.

    Attributes:
        status: of the last response that is whole; None before the first.
        has_ended: whether the program is over; set by who runs it.
        answers: responses that are whole, in the order in which they ended.
        broken_off: what ended a response before it was whole; no other is begun then.
    """

    has_ended = False
    status: Status | None = None
    broken_off: SlimeError | Suspended | None = None
    _is_away = False
    _unawaited: asyncio.Event | None = None

    def __init__(self, attempts: Requests, sample: Sample, limit: TimeLimit) -> None:
        self.attempts, self.sample, self._limit = attempts, sample, limit
        self._task = asyncio.current_task()
        self._num_begun = self._num_asked = 0
        self.answers: list[Answer] = []

    async def respond(self) -> Turn:
        if self.is_asking:
            raise RuntimeError("respond() was called before it had returned")
        if self._num_begun:
            self.sample.segments.clear()
            self.sample.turns.clear()
        segment, seed = self.begin(self.sample.prompt.tokens)
        await self.extend(segment, 0, self.attempts.generator.limit(segment.context), seed)
        return Turn(self.sample.response, self.finish)

    def conversation(self, messages: Sequence[Message] | None = None, tools: Sequence[Any] = ()) -> Conversation:
        return self._chat.conversation(self, messages, tools)

    def rendered(self, messages: Sequence[Message], tools: Sequence[Any] = (), *, prompt: bool = False) -> str:
        return self._chat.render(messages, tools, prompt=prompt)

    def note(self, name: str, value: float) -> None:
        if not REASON.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a metric: it takes the letters a-z, 0-9 and _")
        self.sample.metadata[name] = float(value)

    @property
    def _chat(self) -> Chat:
        if self.attempts.chat is None:
            raise no_kit()
        return self.attempts.chat

    @property
    def finish(self) -> Finish:
        """How the last response ended."""
        return "length" if self.status is Status.TRUNCATED else "stop"

    @property
    def is_asking(self) -> bool:
        """Whether a response is on its way."""
        return self._num_asked > 0

    @property
    def is_resumable(self) -> bool:
        """Whether a later step can go on with what there is: a part of the attempt's first response."""
        return self.status is None and len(self.sample.segments) < 2

    def seed(self, number: int) -> int:
        """Of the segment of that number."""
        return sampling_seed(self.attempts.seed, self.sample, number)

    def begin(self, context: tuple[int, ...]) -> tuple[Segment, int]:
        """A new segment and its seed. The first goes on where a part of it was generated in an earlier step."""
        segments, number = self.sample.segments, self._num_begun
        self._num_begun += 1
        if number == 0 and [segment.context for segment in segments] != [context]:
            segments.clear()
        if number or not segments:
            segments.append(Segment(context))
        return segments[-1], self.seed(number)

    async def extend(self, segment: Segment, begun: int, limit: int, seed: int, stop: Stop = ()) -> Sequence[int]:
        """The tokens of a response at the end of a segment, which has them by now.

        Args:
            begun, limit, seed, stop: see `Generator.continue_response`.

        Raises:
            SlimeError: an engine failed.
            Suspended: the engines were told to abort.
        """
        if self.has_ended:
            raise RuntimeError("a response was asked for after the program had returned")
        attempts = self.attempts
        self._ask()
        try:
            async with attempts.slots:
                if self.broken_off or attempts.are_suspended:
                    raise self.broken_off or Suspended()
                completion, status = await attempts.generator.continue_response(
                    segment, begun, limit, attempts.version, seed, stop
                )
            attempts.num_tokens += len(completion.tokens)
            attempts.num_drafted += completion.num_drafted
            attempts.num_accepted += completion.num_accepted
            if status is Status.ABORTED:
                self.sample.status = status
                raise Suspended
        except (SlimeError, Suspended) as error:
            self.broken_off = error
            raise
        finally:
            self._be_answered()
        response = segment.tokens[begun:]
        self.answers.append(Answer(status, attempts.generator.text(response)))
        self._take_last()
        return response

    def forget(self, answer: Answer) -> None:
        """The attempt goes on as if this response had not been given."""
        self.answers = [other for other in self.answers if other is not answer]
        self._take_last()

    def _take_last(self) -> None:
        self.status, self.sample.response = self.answers[-1] if self.answers else (None, "")

    def _ask(self) -> None:
        if not self.is_asking:
            self.attempts.num_asking += 1
            self.come_back()
            self._limit.stop()
        self._num_asked += 1

    def _be_answered(self) -> None:
        self._num_asked -= 1
        if not self.is_asking:
            self.attempts.num_asking -= 1
            self._limit.start()
            if self._unawaited:
                self._unawaited.set()

    def drop(self, segment: Segment) -> None:
        """Train on the others alone."""
        self.sample.segments[:] = [other for other in self.sample.segments if other is not segment]

    async def answered(self) -> None:
        """Wait for responses that the program asked for and does not wait for: they would change the sample later."""
        if self.is_asking:
            self._unawaited = asyncio.Event()
            await self._unawaited.wait()

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """What happens meanwhile, a worker that starts for instance, takes none of the program's time."""
        self._limit.stop()
        try:
            yield
        finally:
            self._limit.start()

    def go_away(self) -> None:
        """Need no place at an engine until something is asked for again."""
        if not self._is_away and not self.is_asking:
            self._is_away = True
            self.attempts.num_away += 1
            self.attempts.when_away()

    def come_back(self) -> None:
        """Be no longer away."""
        if self._is_away:
            self._is_away = False
            self.attempts.num_away -= 1

    def cancel(self) -> None:
        """Cancel the program at its next await."""
        assert self._task, "a program runs in a task"
        self._task.cancel()
