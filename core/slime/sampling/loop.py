"""The sampling loop: prompts and buffered groups in, rewarded and filtered groups out, one call a step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Protocol

from slime.config.schema import RolloutConfig
from slime.contracts import BufferPolicy, SampleFilter
from slime.errors import SlimeError
from slime.sampling.attempts import begin_again
from slime.sampling.begun import Begun
from slime.sampling.collected import Collected, Progress
from slime.sampling.pipeline import Pipeline
from slime.sampling.sampler import Sampler
from slime.sampling.stats import (
    engine_stats,
    group_stats,
    lag_stats,
    length_bias,
    set_stats,
    shaping_stats,
    zero_variance,
)
from slime.types import Decision, Group, Prompt, Sample, Status

MAX_FRUITLESS = 20
"""The run stops when the filter has dropped this many times `prompts_per_step` groups in a row."""


class PromptStream(Protocol):
    """Where new prompts come from; `PromptSource` is one."""

    def take(self, count: int) -> list[Prompt]: ...


class Judge:
    """The filter, and how many groups it dropped since `dropped` was cleared, by `filter/drop/<reason>`."""

    def __init__(self, sample_filter: SampleFilter, prompts_per_step: int) -> None:
        self._filter, self._most = sample_filter, MAX_FRUITLESS * prompts_per_step
        self._num_fruitless = 0
        self.dropped: Counter[str] = Counter()

    def decide(self, group: Group, version: int) -> Decision:
        """What the filter says of a group.

        Raises:
            SlimeError: it drops one after the other.
        """
        decision = self._filter.decide(group)
        if decision.keep:
            self._num_fruitless = 0
            return decision
        self.dropped[f"filter/drop/{decision.reason}"] += 1
        self._num_fruitless += 1
        if self._num_fruitless >= self._most:
            reason, count = self.dropped.most_common(1)[0]
            what = f"the filter dropped {self._num_fruitless} groups one after the other; {count} {reason}"
            todo = "See what the model answers; give it prompts it solves sometimes, or set filter=none."
            raise SlimeError(what, where=f"weight version {version}", todo=todo)
        return decision


def new_group(cfg: RolloutConfig, prompt: Prompt) -> Group:
    """A group of attempts of which none is begun."""
    return Group(prompt, [Sample(prompt, index) for index in range(cfg.samples_per_prompt)])


class Rollout:
    """Collects one step's groups after the other.

    With `over_sampling` 1 the groups of a step depend only on prompts, seed and weights, not on timing: a group is
    replaced only when the filter dropped it.

    Args:
        cfg: how many groups, and how sampled.
        sampler: makes and judges the attempts.
        prompts, buffer, sample_filter: where groups come from, and which of them are kept.
        begun: by a run that began them ahead; they come first.
    """

    def __init__(
        self,
        cfg: RolloutConfig,
        sampler: Sampler,
        *,
        prompts: PromptStream,
        buffer: BufferPolicy,
        sample_filter: SampleFilter,
        begun: Begun | None = None,
    ) -> None:
        self._cfg, self._sampler = cfg, sampler
        self._prompts, self._buffer, self._filter = prompts, buffer, sample_filter
        self._begun = begun or Begun()

    async def collect(self, version: int, progress: Progress = lambda kept, needed: None) -> Collected:
        """Generate, score and filter until `prompts_per_step` groups are kept; the rest is aborted into the buffer. Of
        it `partial: false` drops what is unfinished.

        Args:
            version: the weight version that every engine holds.
            progress: told after each finished group.

        Raises:
            SlimeError: an engine failed or is stale, too many rewards failed, or the filter keeps nothing. Every
                group begun is in the buffer then, with all that was finished.
        """
        num_expected = self._cfg.prompts_per_step * self._cfg.samples_per_prompt
        pipeline = self._sampler.begin(self._cfg.sampling, version, num_expected)
        step = _Step(self._cfg, version, pipeline, self._prompts, self._buffer, self._filter, self._begun)
        await step.run(progress)
        return Collected(tuple(step.kept), tuple(step.judged), step.stats() | pipeline.failures.stats())


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
        begun: Begun,
    ) -> None:
        self._cfg, self._version, self._pipeline = cfg, version, pipeline
        self._prompts, self._buffer, self._begun = prompts, buffer, begun
        self._judge = Judge(sample_filter, cfg.prompts_per_step)
        self._started: list[str] = []
        self._fresh: list[Group] = []
        self._ended: dict[str, Group] = {}  # whose turn has not come
        self._dropped: Counter[str] = Counter()
        self._num_continued = self._num_dropped = self._num_settled = 0
        self.kept: list[Group] = []
        self.judged: list[tuple[Group, Decision]] = []

    async def run(self, progress: Progress) -> None:
        """Fill `kept`; every other group that was begun ends up in the buffer, but what `partial: false` drops. A step
        that fails drops none."""
        needed = self._cfg.prompts_per_step
        complete = False
        try:
            while len(self.kept) < needed:
                self._start_groups()
                for group in self._in_turn(await self._pipeline.next_finished()):
                    self._settle(group)
                progress(len(self.kept), needed)
            await self._pipeline.abort()
            complete = True
        finally:
            await self._pipeline.cancel()
            surplus = sorted([*self._pipeline.active.values(), *self._ended.values()], key=self._turn)
            stored = [group for group in surplus if self._goes_on(group)] if complete else [*surplus, *self.kept]
            self._num_dropped = len(surplus) - len(stored) if complete else 0
            self._store(stored)
        self.kept.sort(key=self._turn)

    def stats(self) -> dict[str, float]:
        """What happened in this step, as metrics."""
        seconds = {f"seconds/{phase}": value for phase, value in self._pipeline.seconds.items()}
        drops = {
            reason: float(count) for reason, count in sorted([*self._judge.dropped.items(), *self._dropped.items()])
        }
        attempts = self._pipeline.attempts
        counts = {
            "rollout/num_tokens": float(attempts.num_tokens),
            "rollout/continued_samples": float(self._num_continued),
            "rollout/buffered_groups": float(len(self._buffer)),
        }
        if not self._cfg.partial:
            counts["rollout/dropped_groups"] = float(self._num_dropped)
        counts |= shaping_stats(self.kept)
        if self._cfg.over_sampling > 1:
            counts |= length_bias(self._fresh, self.kept)
        if attempts.num_drafted:
            counts["rollout/draft_accept_rate"] = attempts.num_accepted / attempts.num_drafted
        lags = lag_stats(self.kept, self._version, self._cfg.max_weight_lag)
        settled = [group for group, _ in self.judged]
        engines = engine_stats(self._pipeline.busy_seconds())
        return {
            **group_stats(settled),
            **set_stats(settled),
            **zero_variance(self.kept),
            **lags,
            **counts,
            **drops,
            **engines,
            **seconds,
        }

    def _start_groups(self) -> None:
        wanted = math.ceil(self._cfg.prompts_per_step * self._cfg.over_sampling)
        count = wanted - len(self.kept) - len(self._pipeline.active) - len(self._ended)
        continued = self._begun.take(count)
        continued += self._buffer.take(count - len(continued), self._version)
        held: Counter[str] = getattr(self._buffer, "dropped", None) or Counter()
        self._dropped.update({f"buffer/drop/{reason}": number for reason, number in held.items()})
        held.clear()
        self._num_continued += sum(bool(sample.num_sampled) for group in continued for sample in group.samples)
        fresh = [new_group(self._cfg, prompt) for prompt in self._prompts.take(count - len(continued))]
        self._fresh += fresh
        for group in [*continued, *fresh]:
            self._started.append(group.id)
            self._pipeline.submit(group)

    def _turn(self, group: Group) -> int:
        return self._started.index(group.id)

    def _in_turn(self, group: Group) -> Iterator[Group]:
        """What is to be settled now that `group` has ended: it, or with `fixed_prompts` all that waited for it, as far
        as groups are needed."""
        if not self._cfg.fixed_prompts:
            yield group
            return
        self._ended[group.id] = group
        while len(self.kept) < self._cfg.prompts_per_step and self._num_settled < len(self._started):
            if (first := self._started[self._num_settled]) not in self._ended:
                return
            self._num_settled += 1
            yield self._ended.pop(first)

    def _goes_on(self, group: Group) -> bool:
        """Whether a later step is to have this group of the surplus."""
        return self._cfg.partial or (group.finished and not self._cfg.fixed_prompts)

    def _settle(self, group: Group) -> None:
        decision = self._judge.decide(group, self._version)
        self.judged.append((group, decision))
        if decision.keep:
            self.kept.append(group)

    def _store(self, groups: Iterable[Group]) -> None:
        for group in groups:
            _forget_failures(group)
            decision = self._buffer.put(group, self._version)
            if not decision.keep:
                self._dropped[f"buffer/drop/{decision.reason}"] += 1


def _forget_failures(group: Group) -> None:
    """Let a stored sample be scored again if its reward gave no value, and made again if its program failed: the next
    try may have another outcome."""
    for sample in group.samples:
        if sample.status is Status.FAILED:
            begin_again(sample)
        elif sample.verdict is not None and sample.verdict.value is None:
            sample.verdict = None
