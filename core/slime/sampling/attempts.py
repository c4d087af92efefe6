"""Attempts: one sample each, from its prompt to what its program made of it."""

from __future__ import annotations

import asyncio

from guarded_workers.process import LostWorkerError
from guarded_workers.wire import FaultError
from guarded_workers.worker import describe
from slime.config.rollout import ProgramConfig
from slime.contracts import Program
from slime.conversation import Chat
from slime.errors import SlimeError
from slime.reward.verdicts import checked
from slime.sampling.conversation import Model
from slime.sampling.generate import Generator
from slime.sampling.held import TimeLimit, held
from slime.sampling.requests import Requests
from slime.sampling.suspended import Suspended
from slime.time_limit import FAILURES
from slime.types import Sample, Status, Task, Verdict

MAX_LOSSES = 3
"""Workers that an attempt may lose through no fault of its own; then it fails."""


class Attempts(Requests):
    """Runs the program of each attempt, under one weight version.

    Args:
        program: how an attempt is made.
        generator, seed, version, max_requests, chat: see `Requests`.
        is_evaluation: whether the attempts are of held-out prompts.
        timeout_s: what a program may take of its own, between two responses.
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
        super().__init__(generator, seed, version, max_requests=max_requests, chat=chat)
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
