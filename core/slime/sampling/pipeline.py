"""Takes groups of samples through generation and reward, many at once; the machinery of rollout and evaluation."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter, deque
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, NoReturn, Protocol
from weakref import WeakMethod

from slime.config.schema import RewardConfig
from slime.engine_client.client import Engine
from slime.engine_client.engine_set import EngineSet
from slime.errors import NoAnswer, SlimeError
from slime.sampling.attempts import Attempts
from slime.sampling.held import GRACE_S
from slime.types import UNFINISHED, Group, Prompt, Sample, Status, Verdict, VerdictKind

ABORT_AGAIN_S = 0.5
"""A request on its way while the engine aborts is missed by that abort; so abort again until all have answered."""

_Task = asyncio.Task[None]


class Scorer(Protocol):
    """The reward, as the pipeline asks it; `RewardService` is one."""

    async def score(self, sample: Sample) -> Verdict: ...

    def judges_groups(self, prompt: Prompt) -> bool: ...

    async def score_group(self, samples: Sequence[Sample]) -> list[Verdict]: ...


class FailureBudget:
    """Counts verdicts without a value, and ends the run when their share grows too large. Of `num_expected` samples,
    which are going to be scored at least."""

    def __init__(self, cfg: RewardConfig, num_expected: int) -> None:
        self._cfg, self._num_expected = cfg, num_expected
        self._counts: Counter[VerdictKind] = Counter()
        self._first = self._where = self._whose = ""

    def add(self, sample: Sample, verdict: Verdict) -> None:
        """Count one verdict.

        Raises:
            SlimeError: more than `max_failed_share` of the samples have no value; names the first reason.
        """
        self._counts[verdict.kind] += 1
        if verdict.kind is not VerdictKind.VALUE:
            if not self._first:
                self._first = f"{verdict.kind} at prompt {sample.prompt.id}: {verdict.reason}"
                self._whose = "program" if sample.status is Status.FAILED else "reward"
                name = f"reward '{self._cfg.name}'" if self._whose == "reward" else "program of the samples"
                self._where = f"prompt set '{sample.prompt.set}'" if sample.prompt.set else name
            num_scored = max(self._counts.total(), self._num_expected)
            num_failed = self._counts.total() - self._counts[VerdictKind.VALUE]
            if num_failed > self._cfg.max_failed_share * num_scored:
                what = f"no value for {num_failed} of {num_scored} samples; the first was {self._first}"
                budget = f"reward.max_failed_share={self._cfg.max_failed_share:g}"
                todo = f"Mend the {self._whose} or its data, or raise {budget}."
                raise SlimeError(what, where=self._where, todo=todo)

    def clear(self) -> None:
        """Count from now on."""
        self._counts.clear()
        self._first = ""

    def stats(self) -> dict[str, float]:
        """Counts by cause, as metrics."""
        causes = (VerdictKind.INVALID, VerdictKind.TIMEOUT, VerdictKind.ERROR)
        return {f"rollout/reward_{cause}": float(self._counts[cause]) for cause in causes}


class Pipeline:
    """Generate, then score: every submitted sample goes through what it still lacks.

    At most `max_in_flight` attempts are being made; the others wait in the order they were submitted. As many more may
    be away, in the midst of a conversation that waits for a tool. Rewards run while other samples are still being
    generated; those that judge a group, once all of its samples have ended.

    However long responses take, the pipeline waits, as long as the engines generate.

    Attributes:
        active: submitted groups that `next_finished` has not returned yet, by id, in the order they were submitted.
        attempts: makes them, and counts tokens.
        failures: verdicts without a value.
        seconds: wall time with requests at the engines (`generate`), and with only rewards outstanding (`reward`).
    """

    def __init__(
        self,
        attempts: Attempts,
        engines: EngineSet,
        scorer: Scorer,
        failures: FailureBudget,
        max_in_flight: int,
        patience_s: float,
    ) -> None:
        self.attempts, self.failures = attempts, failures
        self._engines, self._scorer = engines, scorer
        self._max_in_flight, self._patience_s = max_in_flight, patience_s
        self._waiting: deque[tuple[Group, Sample]] = deque()
        self._generating: set[_Task] = set()
        self._scoring: set[_Task] = set()
        self._ended: deque[tuple[_Task, Group, Sample]] = deque()
        self._wake = asyncio.Event()
        self._finished: dict[str, Group] = {}
        self._judged_together: set[str] = set()  # groups, now
        self._aborting = self._has_moved = False
        self.active: dict[str, Group] = {}
        moved = WeakMethod(self._one_away)  # each step has a pipeline; in a circle none would end with its step
        attempts.when_away = lambda: tell() if (tell := moved()) else None
        self.seconds = {"generate": 0.0, "reward": 0.0}
        self._busy_before = engines.busy_seconds()

    def reset_counts(self) -> None:
        """Count tokens, failures and seconds from now on."""
        self.attempts.num_tokens = self.attempts.num_drafted = self.attempts.num_accepted = 0
        self.failures.clear()
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        self._busy_before = self._engines.busy_seconds()

    def stats(self) -> dict[str, float]:
        """Metrics of what went through the engines and the reward since the pipeline began to count."""
        attempts, before = self.attempts, self._busy_before
        busy = [now - before.get(engine, 0.0) for engine, now in self._engines.busy_seconds().items()]
        found = {"rollout/num_tokens": float(attempts.num_tokens), **_engine_stats(busy), **self.failures.stats()}
        if attempts.num_drafted:
            found["rollout/draft_accept_rate"] = attempts.num_accepted / attempts.num_drafted
        return found

    def submit(self, group: Group) -> None:
        """Start on `group`; a sample that is already generated is only scored, one with a verdict left alone."""
        self.active[group.id] = group
        for sample in group.samples:
            self._advance(group, sample)
        self._wake.set()

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
        self.attempts.suspend()
        self._waiting.clear()
        for task in self._scoring:
            task.cancel()
        now = asyncio.get_running_loop().time
        deadline, again = now() + self._patience_s, now() + GRACE_S
        while running := set(self._generating):  # all of them may end while the engines abort
            if now() > again:
                self.attempts.suspend()
            await self._engines.abort_all()
            ended, _ = await asyncio.wait(running, timeout=ABORT_AGAIN_S)
            for task in ended:
                task.result()
            if now() > deadline:
                self._hangs("the engines", f"{len(self._generating)} aborted requests were not answered")

    async def cancel(self) -> None:
        """Leave everything where it stands and drop what the engines would still answer."""
        self._waiting.clear()
        tasks = [*self._generating, *self._scoring]
        left = set(tasks)
        while left:  # a program may need to be cancelled twice
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=GRACE_S)
        while self._ended:  # one error ended the step; those that came with it are of the same cause
            task, _, _ = self._ended.popleft()
            task.cancelled() or task.exception()

    def _advance(self, group: Group, sample: Sample) -> None:
        """Begin what `sample` lacks next; with nothing lacking, see whether its group is complete.

        Several samples of a group may have ended before the first of them comes here: then it has been returned.
        """
        if sample.status in UNFINISHED:
            self._waiting.append((group, sample))
        elif sample.verdict is None and not self._scorer.judges_groups(group.prompt):
            self._start(self._score(sample), self._scoring, group, sample)
        elif group.id not in self.active or any(other.status in UNFINISHED for other in group.samples):
            return
        elif all(other.verdict is not None for other in group.samples):
            self._finished[group.id] = group
        elif self._scorer.judges_groups(group.prompt) and group.id not in self._judged_together:
            self._judged_together.add(group.id)
            self._start(self._score_group(group), self._scoring, group, sample)

    def _fill(self) -> None:
        most = self._max_in_flight
        while self._waiting and len(self._generating) - min(self.attempts.num_away, most) < most:
            group, sample = self._waiting.popleft()
            self._start(self._generate(sample), self._generating, group, sample)

    def _start(self, work: Coroutine[Any, Any, None], running: set[_Task], group: Group, sample: Sample) -> None:
        def end(task: _Task) -> None:
            running.remove(task)
            self._ended.append((task, group, sample))
            self._wake.set()

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
            if self._ended:
                ended.append(self._ended.popleft())

    async def _next_end(self) -> tuple[_Task, Group, Sample]:
        """The task that ends next; while none does, see now and then whether the engines still generate."""
        loads: Mapping[Engine, tuple[int, int]] = {}
        while not self._ended:
            is_patient = await self._wait()
            if self._ended:
                break
            self._fill()
            if not is_patient and self.attempts.num_asking and not self._has_moved:
                loads = await self._progress(loads)
            self._has_moved = False
        return self._ended.popleft()

    async def _wait(self) -> bool:
        """Until something ends, or an attempt is away and another one can begin; false if the patience is over
        before."""
        self._wake.clear()
        try:
            async with asyncio.timeout(self._patience_s):
                await self._wake.wait()
        except TimeoutError:
            return False
        await asyncio.sleep(0)  # what ends in the same moment counts too: then its successors share one message
        return True

    def _one_away(self) -> None:
        self._has_moved = True
        if self._waiting:
            self._wake.set()

    async def _progress(self, before: Mapping[Engine, tuple[int, int]]) -> Mapping[Engine, tuple[int, int]]:
        """The engines' loads; an error if one is what it was before."""
        loads = await self._engines.loads()
        if self._engines.has_lost:  # requests wait for it
            return {}
        for engine, (num_requests, num_tokens) in loads.items():
            if num_requests and (num_requests, num_tokens) == before.get(engine):
                self._hangs(f"engine {engine.url}", f"no token was generated for any of its {num_requests} requests")
        if loads == before and not any(num_requests for num_requests, _ in loads.values()):
            self._hangs("the engines", f"they have no request, but {self.attempts.num_asking} were not answered")
        return loads

    def _hangs(self, where: str, what: str) -> NoReturn:
        todo = "See the engines' logs. If they were only slow, raise rollout.request_timeout_s."
        raise NoAnswer(f"{what} in {self._patience_s:g} s", where=where, todo=todo)

    async def _generate(self, sample: Sample) -> None:
        is_over = await self.attempts.run(sample)
        if not is_over and not self._aborting:
            todo = "Somebody else aborted its requests, or it is shutting down: see the engine's log."
            raise SlimeError("an engine aborted a request on its own", where=f"prompt {sample.prompt.id}", todo=todo)
        if sample.verdict:
            self.failures.add(sample, sample.verdict)

    async def _score(self, sample: Sample) -> None:
        sample.verdict = await self._scorer.score(sample)
        self.failures.add(sample, sample.verdict)

    async def _score_group(self, group: Group) -> None:
        """Judge what has no verdict yet. The reward sees all responses, also those that their program has judged."""
        responses = [sample for sample in group.samples if sample.status is not Status.FAILED]
        try:
            verdicts = await self._scorer.score_group(responses)
        finally:
            self._judged_together.remove(group.id)
        for sample, verdict in zip(responses, verdicts, strict=True):
            if sample.verdict is None:
                sample.verdict = verdict
                self.failures.add(sample, verdict)


def _engine_stats(busy_s: Sequence[float]) -> dict[str, float]:
    """Of several engines the mean and the largest of their `busy_s`, the seconds with requests, and whose
    is the largest, the number of an engine. A step waits for that one."""
    if len(busy_s) < 2:
        return {}
    slowest = max(range(len(busy_s)), key=busy_s.__getitem__)
    mean = statistics.fmean(busy_s)
    return {"engines/seconds_mean": mean, "engines/seconds_max": busy_s[slowest], "engines/slowest": float(slowest)}
