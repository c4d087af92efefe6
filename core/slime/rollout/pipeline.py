"""Takes groups of samples through generation and reward, many at once; the machinery of rollout and evaluation."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Coroutine, Sequence
from typing import Any, NoReturn, Protocol

from slime.config.schema import RewardConfig
from slime.errors import NoAnswer, SlimeError
from slime.rollout.generate import Engine, Generator
from slime.types import Group, Sample, Status, Verdict, VerdictKind

ABORT_AGAIN_S = 0.5
"""A request on its way while the engine aborts is missed by that abort; so abort again until all have answered."""

_Task = asyncio.Task[None]

_UNFINISHED = (Status.PENDING, Status.ABORTED)


class Scorer(Protocol):
    """What the pipeline asks of the reward; `RewardService` is one."""

    async def score(self, sample: Sample) -> Verdict: ...


class FailureBudget:
    """Counts verdicts without a value, and ends the run when their share grows too large.

    Args:
        cfg: name and `max_failed_share` of the reward.
        num_expected: samples that are going to be scored at least.
    """

    def __init__(self, cfg: RewardConfig, num_expected: int) -> None:
        self._cfg, self._num_expected = cfg, num_expected
        self._counts: Counter[VerdictKind] = Counter()
        self._first = ""

    def add(self, sample: Sample, verdict: Verdict) -> None:
        """Count one verdict.

        Raises:
            SlimeError: more than `max_failed_share` of the samples have no value; names the first reason.
        """
        self._counts[verdict.kind] += 1
        if verdict.kind is not VerdictKind.VALUE:
            self._first = self._first or f"{verdict.kind} at prompt {sample.prompt.id}: {verdict.reason}"
            self._stop_if_too_many()

    def stats(self) -> dict[str, float]:
        """Counts by cause, as metrics."""
        causes = (VerdictKind.INVALID, VerdictKind.TIMEOUT, VerdictKind.ERROR)
        return {f"rollout/reward_{cause}": float(self._counts[cause]) for cause in causes}

    def _stop_if_too_many(self) -> None:
        num_scored = max(self._counts.total(), self._num_expected)
        num_failed = self._counts.total() - self._counts[VerdictKind.VALUE]
        if num_failed > self._cfg.max_failed_share * num_scored:
            what = f"no value for {num_failed} of {num_scored} samples; the first was {self._first}"
            todo = f"Mend the reward or its data, or raise reward.max_failed_share={self._cfg.max_failed_share:g}."
            raise SlimeError(what, where=f"reward '{self._cfg.name}'", todo=todo)


class Pipeline:
    """Generate, then score: every submitted sample goes through what it still lacks.

    At most `max_in_flight` requests are at the engines; the others wait in the order they were submitted. Rewards run
    while other samples are still being generated.

    However long responses take, the pipeline waits, as long as the engines generate.

    Attributes:
        active: submitted groups that `next_finished` has not returned yet, by id, in the order they were submitted.
        num_tokens: generated so far.
        num_drafted, num_accepted: tokens proposed by drafting models so far, and those of them that were taken.
        seconds: wall time with requests at the engines (`generate`), and with only rewards outstanding (`reward`).
    """

    def __init__(
        self,
        generator: Generator,
        engines: Sequence[Engine],
        scorer: Scorer,
        failures: FailureBudget,
        max_in_flight: int,
        version: int,
        patience_s: float,
    ) -> None:
        self._generator, self._engines, self._scorer, self._failures = generator, engines, scorer, failures
        self._max_in_flight, self._version, self._patience_s = max_in_flight, version, patience_s
        self._waiting: deque[tuple[Group, Sample]] = deque()
        self._generating: set[_Task] = set()
        self._scoring: set[_Task] = set()
        self._ended: asyncio.Queue[tuple[_Task, Group, Sample]] = asyncio.Queue()
        self._finished: dict[str, Group] = {}
        self._aborting = False
        self.active: dict[str, Group] = {}
        self.num_tokens = self.num_drafted = self.num_accepted = 0
        self.seconds = {"generate": 0.0, "reward": 0.0}

    def submit(self, group: Group) -> None:
        """Start on `group`; a sample that is already generated is only scored, one with a verdict left alone."""
        self.active[group.id] = group
        for sample in group.samples:
            self._advance(group, sample)

    async def next_finished(self) -> Group:
        """The next group whose samples all have verdicts, removed from `active`.

        Raises:
            SlimeError: an engine failed or hangs, or too many rewards failed. The pipeline must then be cancelled.
        """
        assert self.active, "nothing was submitted"
        while not self._finished:
            self._fill()
            await self._some_end()
        group = self._finished.pop(next(iter(self._finished)))
        return self.active.pop(group.id)

    async def abort(self) -> None:
        """Stop generating: samples at an engine come back `aborted` with what they have, no other one is begun."""
        self._aborting = True
        self._waiting.clear()
        for task in self._scoring:
            task.cancel()
        now = asyncio.get_running_loop().time
        deadline = now() + self._patience_s
        while running := set(self._generating):  # all of them may end while the engines abort
            await asyncio.gather(*(engine.abort_all() for engine in self._engines))
            ended, _ = await asyncio.wait(running, timeout=ABORT_AGAIN_S)
            for task in ended:
                task.result()
            if now() > deadline:
                self._hangs("the engines", f"{len(self._generating)} aborted requests were not answered")

    async def cancel(self) -> None:
        """Leave everything where it stands and drop what the engines would still answer."""
        self._waiting.clear()
        tasks = [*self._generating, *self._scoring]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while not self._ended.empty():  # one error ended the step; those that came with it are of the same cause
            task, _, _ = self._ended.get_nowait()
            task.cancelled() or task.exception()

    def _advance(self, group: Group, sample: Sample) -> None:
        """Begin what `sample` lacks next; with nothing lacking, see whether its group is complete.

        Several samples of a group may have ended before the first of them comes here: then it has been returned.
        """
        if sample.status in _UNFINISHED:
            self._waiting.append((group, sample))
        elif sample.verdict is None:
            self._start(self._score(sample), self._scoring, group, sample)
        elif group.id in self.active and all(other.verdict is not None for other in group.samples):
            self._finished[group.id] = group

    def _fill(self) -> None:
        while self._waiting and len(self._generating) < self._max_in_flight:
            group, sample = self._waiting.popleft()
            self._start(self._generate(sample), self._generating, group, sample)

    def _start(self, work: Coroutine[Any, Any, None], running: set[_Task], group: Group, sample: Sample) -> None:
        def end(task: _Task) -> None:
            running.remove(task)
            self._ended.put_nowait((task, group, sample))

        task = asyncio.create_task(work)
        running.add(task)
        task.add_done_callback(end)

    async def _some_end(self) -> None:
        """Wait for what ends next, and take all that has ended with it, instead of waking up for each."""
        phase = "generate" if self._generating else "reward"
        start = time.perf_counter()
        ended = [await self._next_end()]
        self.seconds[phase] += time.perf_counter() - start
        while ended:
            task, group, sample = ended.pop()
            task.result()  # raises what the task raised
            self._advance(group, sample)
            if not self._ended.empty():
                ended.append(self._ended.get_nowait())

    async def _next_end(self) -> tuple[_Task, Group, Sample]:
        """What ends next; while nothing does, see now and then whether the engines still generate."""
        loads: list[tuple[int, int] | None] = [None] * len(self._engines)
        while True:
            try:
                return await asyncio.wait_for(self._ended.get(), self._patience_s)
            except TimeoutError:
                if self._generating:
                    loads = await self._progress(loads)

    async def _progress(self, before: list[tuple[int, int] | None]) -> list[tuple[int, int] | None]:
        """What the engines have to do now, unless it is what they had to do before."""
        loads = await asyncio.gather(*(engine.load() for engine in self._engines))
        for engine, (num_requests, num_tokens), earlier in zip(self._engines, loads, before, strict=True):
            if num_requests and (num_requests, num_tokens) == earlier:
                self._hangs(f"engine {engine.url}", f"no token was generated for any of its {num_requests} requests")
        if loads == before and not any(num_requests for num_requests, _ in loads):
            self._hangs("the engines", f"they have no request, but {len(self._generating)} were not answered")
        return list(loads)

    def _hangs(self, where: str, what: str) -> NoReturn:
        todo = "See the engines' logs. If they were only slow, raise rollout.request_timeout_s."
        raise NoAnswer(f"{what} in {self._patience_s:g} s", where=where, todo=todo)

    async def _generate(self, sample: Sample) -> None:
        generation = await self._generator.continue_sample(sample, self._version)
        self.num_tokens += len(generation.tokens)
        self.num_drafted += generation.num_drafted
        self.num_accepted += generation.num_accepted
        if sample.status is Status.ABORTED and not self._aborting:
            todo = "Somebody else aborted its requests, or it is shutting down: see the engine's log."
            raise SlimeError("an engine aborted a request on its own", where=f"prompt {sample.prompt.id}", todo=todo)

    async def _score(self, sample: Sample) -> None:
        sample.verdict = await self._scorer.score(sample)
        self._failures.add(sample, sample.verdict)
