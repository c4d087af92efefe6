"""Attempts: one sample each, from its prompt to what its program made of it, with the exact tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from guarded_workers.process import LostWorkerError
from guarded_workers.wire import FaultError
from guarded_workers.worker import describe
from slime.config.rollout import ProgramConfig
from slime.contracts import Program
from slime.errors import SlimeError
from slime.reward.verdicts import checked
from slime.sampling.generate import Generator, sampling_seed
from slime.sampling.guarded import REASON
from slime.sampling.held import Suspended, TimeLimit, held
from slime.sampling.programs import no_kit
from slime.segments import Segment
from slime.time_limit import FAILURES
from slime.types import Finish, Message, Sample, Status, Task, Turn, Verdict

if TYPE_CHECKING:
    from slime.conversation import Chat, Conversation, Stop

MAX_LOSSES = 3
"""Workers that an attempt may lose through no fault of its own; then it fails."""


class Attempts:
    """Runs the program of each attempt, under one weight version.

    Args:
        program: how an attempt is made.
        generator: asks the engines.
        seed: of the run.
        version: the weight version that every engine holds.
        is_evaluation: whether the attempts are of held-out prompts.
        max_requests: at the engines at once.
        chat: turns conversations of several turns into tokens; None: there are none.
        timeout_s: what a program may take of its own, between two responses.

    Attributes:
        num_tokens: generated so far.
        num_drafted, num_accepted: tokens proposed by drafting models so far, and those of them that were taken.
        num_asking: attempts that wait for the engines, or for their turn there.
        num_away: attempts in the midst of a conversation that ask for nothing now: a tool runs, for instance.
        when_away: called when one more of them is away, so that another one may begin.
        are_suspended: the engines are told to abort; no further response is begun.
    """

    def __init__(
        self,
        program: Program,
        generator: Generator,
        seed: int,
        version: int,
        *,
        is_evaluation: bool = False,
        max_requests: int = 1,
        chat: Chat | None = None,
        timeout_s: float = ProgramConfig.timeout_s,
    ) -> None:
        self.generator, self.seed, self.version, self.chat = generator, seed, version, chat
        self.slots = asyncio.Semaphore(max_requests)
        self.num_tokens = self.num_drafted = self.num_accepted = self.num_asking = self.num_away = 0
        self.are_suspended = False
        self.when_away: Callable[[], None] = lambda: None
        self._program, self._is_evaluation, self._timeout_s = program, is_evaluation, timeout_s
        self._running: set[Model] = set()

    def suspend(self) -> None:
        """Begin no further response: the engines are told to abort. Programs that wait for something else are
        cancelled; called again, they are closed."""
        self.are_suspended = True
        for model in self._running:
            if not model.is_asking:
                model.cancel()

    async def run(self, sample: Sample) -> bool:
        """Make the attempt; whether it is over. Then the sample is `completed` or `truncated`; or `failed`, with a
        verdict, where its program is at fault. If not, an engine was told to abort: it is `aborted` or `pending`.

        Raises:
            SlimeError: an engine failed, or answered with other weights.
        """
        lost: list[str] = []
        while len(lost) < MAX_LOSSES:
            try:
                return await self._run(sample)
            except LostWorkerError as error:
                lost.append(str(error))
                begin_again(sample)
        _fail(sample, Verdict.error(f"{MAX_LOSSES} workers of the program were lost: {'; '.join(lost)}"))
        return True

    async def _run(self, sample: Sample) -> bool:
        limit = TimeLimit(self._timeout_s)
        model = Model(self, sample, limit)
        is_over = False
        self._running.add(model)
        try:
            is_over = await self._make(sample, model, limit)
        finally:
            limit.stop()
            model.come_back()
            self._running.remove(model)
            if not is_over:
                sample.turns.clear()
                if not model.is_resumable:
                    begin_again(sample)
        return is_over

    async def _make(self, sample: Sample, model: Model, limit: TimeLimit) -> bool:
        task = Task(sample.prompt, sample.index, model.seed(0), self._is_evaluation)
        verdict: Verdict | None = None
        fault: BaseException | None = None
        limit.start()
        try:
            verdict = await held(self._program.run(task, model))
        except (*FAILURES, Suspended) as error:
            fault = error
        except asyncio.CancelledError as error:
            if not limit.has_passed and not self.are_suspended:
                raise
            fault = error
        limit.stop()
        model.has_ended = True
        await model.answered()
        if isinstance(model.broken_off, SlimeError):  # also if the program caught it
            raise model.broken_off
        if isinstance(fault, LostWorkerError):
            raise fault
        if limit.has_passed:
            _fail(sample, Verdict.timeout(f"the program did not end within {self._timeout_s:g} s of its own"))
        elif model.broken_off or isinstance(fault, asyncio.CancelledError):
            return False
        elif isinstance(fault, FaultError):  # it happened in a worker, whose words these are
            _fail(sample, Verdict.error(str(fault)))
        elif fault:
            _fail(sample, Verdict.error(f"the program raised {describe(fault)}"))
        elif verdict is not None and not isinstance(verdict, Verdict):
            _fail(sample, Verdict.error(f"the program gave {verdict!r:.80}, not a Verdict or None"))
        elif model.status is None:
            _fail(sample, Verdict.error("the program ended without a response"))
        else:
            # Of a worker it is checked already; one in the driver hands over what it likes.
            sample.status, sample.verdict = model.status, verdict and checked(verdict, "the program")
        return True


def begin_again(sample: Sample) -> None:
    """Forget what was generated."""
    sample.segments.clear()
    sample.turns.clear()
    sample.metadata.clear()
    sample.status, sample.response, sample.verdict = Status.PENDING, "", None


def _fail(sample: Sample, verdict: Verdict) -> None:
    sample.status, sample.verdict = Status.FAILED, verdict


class Answer(NamedTuple):
    """A whole response: how it ended, and its text."""

    status: Status
    text: str


class Model:
    """A `slime.contracts.Responder` for one of `attempts`; `limit` is what the program may take of its own.

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

    def __init__(self, attempts: Attempts, sample: Sample, limit: TimeLimit) -> None:
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
        """The seed of the segment of that number."""
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
        """The tokens of a response at the end of a segment, which has them by now. Arguments: see
        `Generator.continue_response`.

        Raises:
            RefusedError: the segment has a token that the model has not.
            SlimeError: an engine failed.
            Suspended: the engines were told to abort.
        """
        if self.has_ended:
            raise RuntimeError("a response was asked for after the program had returned")
        attempts = self.attempts
        attempts.generator.require_known([*segment.context, *segment.tokens])
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
