"""The sampling loop: prompts and buffered groups in, rewarded and filtered groups out, one call a step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from slime.config.schema import RewardConfig, RolloutConfig
from slime.contracts import BufferPolicy, SampleFilter
from slime.data.tokenize import Tokenizer
from slime.errors import SlimeError
from slime.rollout.generate import Engine, Generator
from slime.rollout.pipeline import FailureBudget, Pipeline, Scorer
from slime.rollout.spread import front
from slime.rollout.stats import group_stats, lag_stats, zero_variance
from slime.types import Decision, Group, Prompt, Sample

MAX_FRUITLESS = 20
"""The run stops when the filter has dropped this many times `prompts_per_step` groups in a row."""

Progress = Callable[[int, int], None]
"""Called with (groups kept, groups needed)."""


def most_in_flight(cfg: RolloutConfig, engines: Sequence[Engine]) -> int:
    """Requests at all engines at once."""
    return cfg.max_requests_per_engine * sum(engine.num_generating for engine in engines)


class PromptStream(Protocol):
    """Where new prompts come from; `PromptSource` is one."""

    def take(self, count: int) -> list[Prompt]: ...


@dataclass(frozen=True)
class Collected:
    """What one step trains on.

    Attributes:
        groups: `prompts_per_step` of them, in the order they were begun (not the order they finished).
        judged: every group that finished, in that order, with what the filter said of it.
        stats: metrics by name; the two under `seconds/` are wall time.
    """

    groups: tuple[Group, ...]
    judged: tuple[tuple[Group, Decision], ...]
    stats: dict[str, float]


class Rollout:
    """Collects one step's groups after the other. Belongs to one event loop, as the engines' clients do.

    With `over_sampling` 1 the groups of a step depend only on prompts, seed and weights, not on timing: a group is
    replaced only when the filter dropped it.

    Args:
        cfg: how many groups, how sampled, how many requests at once.
        reward: name and `max_failed_share` of the reward.
        seed: of the run.
        tokenizer: turns responses into text.
        prompts, buffer, sample_filter, scorer: where groups come from and what judges them.
        engines: every engine, or the pairs that they work in; the requests are spread over them.
    """

    def __init__(
        self,
        cfg: RolloutConfig,
        reward: RewardConfig,
        seed: int,
        *,
        tokenizer: Tokenizer,
        prompts: PromptStream,
        buffer: BufferPolicy,
        sample_filter: SampleFilter,
        scorer: Scorer,
        engines: Sequence[Engine],
    ) -> None:
        self._cfg, self._reward = cfg, reward
        self._prompts, self._buffer, self._filter, self._scorer = prompts, buffer, sample_filter, scorer
        self._engines = engines
        self._generator = Generator(front(engines), cfg.sampling, tokenizer, seed)

    async def collect(self, version: int, progress: Progress = lambda kept, needed: None) -> Collected:
        """Generate, score and filter until `prompts_per_step` groups are kept; the rest is aborted into the buffer.

        Args:
            version: the weight version that every engine holds.
            progress: told after each finished group.

        Raises:
            SlimeError: an engine failed or is stale, too many rewards failed, or the filter keeps nothing. Every
                group begun is in the buffer then, with all that was finished.
        """
        failures = FailureBudget(self._reward, self._cfg.prompts_per_step * self._cfg.samples_per_prompt)
        pipeline = Pipeline(
            self._generator,
            self._engines,
            self._scorer,
            failures,
            most_in_flight(self._cfg, self._engines),
            version,
            self._cfg.request_timeout_s,
        )
        step = _Step(self._cfg, version, pipeline, self._prompts, self._buffer, self._filter)
        await step.run(progress)
        return Collected(tuple(step.kept), tuple(step.judged), step.stats() | failures.stats())


class _Step:
    """The groups of one `collect`."""

    def __init__(
        self,
        cfg: RolloutConfig,
        version: int,
        pipeline: Pipeline,
        prompts: PromptStream,
        buffer: BufferPolicy,
        sample_filter: SampleFilter,
    ) -> None:
        self._cfg, self._version, self._pipeline = cfg, version, pipeline
        self._prompts, self._buffer, self._filter = prompts, buffer, sample_filter
        self._started: list[str] = []
        self._dropped: Counter[str] = Counter()
        self._num_continued = self._num_fruitless = 0
        self.kept: list[Group] = []
        self.judged: list[tuple[Group, Decision]] = []

    async def run(self, progress: Progress) -> None:
        """Fill `kept`; every other group that was begun ends up in the buffer."""
        needed = self._cfg.prompts_per_step
        complete = False
        try:
            while len(self.kept) < needed:
                self._start_groups()
                self._settle(await self._pipeline.next_finished())
                progress(len(self.kept), needed)
            await self._pipeline.abort()
            complete = True
        finally:
            await self._pipeline.cancel()
            self._store(self._pipeline.active.values())
            if not complete:
                self._store(self.kept)
        self.kept.sort(key=lambda group: self._started.index(group.id))

    def stats(self) -> dict[str, float]:
        """What happened in this step, as metrics."""
        seconds = {f"seconds/{phase}": value for phase, value in self._pipeline.seconds.items()}
        drops = {reason: float(count) for reason, count in sorted(self._dropped.items())}
        counts = {
            "rollout/num_tokens": float(self._pipeline.num_tokens),
            "rollout/continued_samples": float(self._num_continued),
            "rollout/buffered_groups": float(len(self._buffer)),
        }
        if self._pipeline.num_drafted:
            counts["rollout/draft_accept_rate"] = self._pipeline.num_accepted / self._pipeline.num_drafted
        lags = lag_stats(self.kept, self._version, self._cfg.max_weight_lag)
        settled = [group for group, _ in self.judged]
        return {**group_stats(settled), **zero_variance(self.kept), **lags, **counts, **drops, **seconds}

    def _start_groups(self) -> None:
        wanted = math.ceil(self._cfg.prompts_per_step * self._cfg.over_sampling)
        count = wanted - len(self.kept) - len(self._pipeline.active)
        continued = self._buffer.take(count, self._version)
        self._num_continued += sum(bool(sample.spans) for group in continued for sample in group.samples)
        fresh = self._prompts.take(count - len(continued))
        for group in [*continued, *(self._new_group(prompt) for prompt in fresh)]:
            self._started.append(group.id)
            self._pipeline.submit(group)

    def _new_group(self, prompt: Prompt) -> Group:
        return Group(prompt, [Sample(prompt, index) for index in range(self._cfg.samples_per_prompt)])

    def _settle(self, group: Group) -> None:
        decision = self._filter.decide(group)
        self.judged.append((group, decision))
        if decision.keep:
            self.kept.append(group)
            self._num_fruitless = 0
        else:
            self._dropped[f"filter/drop/{decision.reason}"] += 1
            self._num_fruitless += 1
            self._stop_if_fruitless()

    def _stop_if_fruitless(self) -> None:
        if self._num_fruitless >= MAX_FRUITLESS * self._cfg.prompts_per_step:
            reason, count = self._dropped.most_common(1)[0]
            what = f"the filter dropped {self._num_fruitless} groups one after the other; {count} {reason}"
            todo = "See what the model answers; give it prompts it solves sometimes, or set filter=none."
            raise SlimeError(what, where=f"weight version {self._version}", todo=todo)

    def _store(self, groups: Iterable[Group]) -> None:
        for group in groups:
            _forget_failures(group)
            decision = self._buffer.put(group, self._version)
            if not decision.keep:
                self._dropped[f"buffer/drop/{decision.reason}"] += 1


def _forget_failures(group: Group) -> None:
    """Let a stored sample be scored again if its reward gave no value: the next try may have another outcome."""
    for sample in group.samples:
        if sample.verdict is not None and sample.verdict.value is None:
            sample.verdict = None
