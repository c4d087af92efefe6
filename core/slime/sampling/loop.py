"""The sampling loop: prompts and buffered groups in, rewarded and filtered groups out, one call a step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from slime.config.choices import Publish, Surplus
from slime.config.schema import RolloutConfig
from slime.contracts import BufferPolicy, SampleFilter
from slime.engine_client.engine_set import EngineSet
from slime.errors import SlimeError
from slime.sampling.attempts import begin_again
from slime.sampling.buffer import Begun
from slime.sampling.generate import Gate
from slime.sampling.pipeline import Pipeline
from slime.sampling.sampler import Sampler
from slime.sampling.stats import length_bias, step_stats
from slime.types import Decision, Group, Prompt, Sample, Status

MAX_FRUITLESS = 20
"""The run stops when the filter has dropped this many times `prompts_per_step` groups in a row."""
Progress = Callable[[int, int], None]
"""Called with (groups kept, groups needed)."""


@dataclass(frozen=True)
class Collected:
    """The groups that one step trains on, `prompts_per_step`, in the order they were begun; every group that finished,
    in the order of that, with the filter's decision; and metrics, of which the two under `seconds/` are wall time."""

    groups: tuple[Group, ...]
    judged: tuple[tuple[Group, Decision], ...]
    stats: dict[str, float]


class PromptStream(Protocol):
    """A source of new prompts; `PromptSource` is one."""

    def take(self, count: int) -> list[Prompt]: ...


class Judge:
    """The filter, and how many groups it dropped since `dropped` was cleared, by `filter/drop/<reason>`."""

    def __init__(self, sample_filter: SampleFilter, prompts_per_step: int) -> None:
        self._filter, self._most = sample_filter, MAX_FRUITLESS * prompts_per_step
        self._num_fruitless = 0
        self.dropped: Counter[str] = Counter()

    def decide(self, group: Group, version: int) -> Decision:
        """The filter's decision on a group.

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


@dataclass(eq=False)
class Rollout:
    """Collects one step's groups after the other.

    With `over_sampling` 1 the groups of a step depend only on prompts, seed and weights, not on timing: a group is
    replaced only when the filter dropped it.

    Attributes:
        cfg: how many groups, and how sampled.
        sampler: makes and judges the attempts.
        prompts, buffer, sample_filter: where groups come from, and which of them are kept.
        begun: by a run that began them ahead; they come first.
        num_overlapped: tokens of responses that ended while trainers worked, since the last step was collected.
    """

    cfg: RolloutConfig
    sampler: Sampler
    prompts: PromptStream
    buffer: BufferPolicy
    sample_filter: SampleFilter
    begun: Begun = field(default_factory=Begun)
    num_overlapped: int = field(default=0, init=False)

    async def collect(self, version: int, progress: Progress = lambda kept, needed: None) -> Collected:
        """Generate, score and filter until `prompts_per_step` groups are kept, by engines that all hold `version`; the
        rest is aborted into the buffer, as far as `surplus` has it go on.

        Raises:
            SlimeError: an engine failed or is stale, too many rewards failed, or the filter keeps nothing. Every
                group begun is in the buffer then, with all that was finished.
        """
        step = _Step(self, version)
        await step.run(progress)
        return Collected(tuple(step.kept), tuple(step.judged), step.stats())

    def begin(self, version: int) -> Pipeline:
        """A pipeline for the groups of a step."""
        num_expected = self.cfg.prompts_per_step * self.cfg.samples_per_prompt
        return self.sampler.begin(self.cfg.sampling, version, num_expected)

    def new_groups(self, count: int) -> list[Group]:
        """Groups of the next `count` prompts, with attempts of which none is begun."""
        samples = range(self.cfg.samples_per_prompt)
        return [Group(each, [Sample(each, index) for index in samples]) for each in self.prompts.take(count)]

    @property
    def num_tokens(self) -> int:
        """Tokens of responses that ended ahead of their step since the last one was collected."""
        return 0

    def go_on(self, version: int) -> None:
        """Every engine holds `version` now: begin ahead what may be begun."""

    async def close(self) -> None:
        """Leave everything where it stands; `go_on` begins with `begun`, if it follows."""


class Ahead(NamedTuple):
    """Rollouts that go on while trainers work (`rollout.max_staleness` above 0), as a plugin brings them."""

    gate: Callable[[EngineSet, Publish, float], Gate]
    """The last argument: seconds within which an aborted request is answered."""
    rollout: Callable[..., Rollout]
    """Arguments as of `Rollout`, and `num_steps` of the whole run; generates as long as its event loop turns."""


class _Step:
    """The groups of one `collect`."""

    def __init__(self, rollout: Rollout, version: int) -> None:
        self._rollout, self._cfg, self._version, self._buffer = rollout, rollout.cfg, version, rollout.buffer
        self._pipeline = rollout.begin(version)
        self._judge = Judge(rollout.sample_filter, rollout.cfg.prompts_per_step)
        self._started: list[str] = []
        self._fresh: list[Group] = []
        self._ended: dict[str, Group] = {}  # whose turn has not come
        self._dropped: Counter[str] = Counter()
        self._num_continued = self._num_dropped = self._num_settled = 0
        self.kept: list[Group] = []
        self.judged: list[tuple[Group, Decision]] = []

    async def run(self, progress: Progress) -> None:
        """Fill `kept`; every other group that was begun ends up in the buffer, but what `surplus` drops. A step that
        fails drops none."""
        needed = self._cfg.prompts_per_step
        complete = False
        try:
            while len(self.kept) < needed:
                self._start_groups()
                for group in self._in_turn(await self._pipeline.next_finished()):
                    decision = self._judge.decide(group, self._version)
                    self.judged.append((group, decision))
                    self.kept += [group] if decision.keep else []
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
        """Metrics of this step."""
        found = step_stats([group for group, _ in self.judged], self.kept, self._version, self._cfg.max_weight_lag)
        found |= {
            "rollout/continued_samples": float(self._num_continued),
            "rollout/buffered_groups": float(len(self._buffer)),
        }
        if self._cfg.surplus is not Surplus["continue"]:
            found["rollout/dropped_groups"] = float(self._num_dropped)
        if self._cfg.over_sampling > 1:
            found |= length_bias(self._fresh, self.kept)
        found |= {why: float(count) for why, count in sorted([*self._judge.dropped.items(), *self._dropped.items()])}
        seconds = {f"seconds/{phase}": value for phase, value in self._pipeline.seconds.items()}
        return {**found, **self._pipeline.stats(), **seconds}

    def _start_groups(self) -> None:
        wanted = math.ceil(self._cfg.prompts_per_step * self._cfg.over_sampling)
        count = wanted - len(self.kept) - len(self._pipeline.active) - len(self._ended)
        continued = self._rollout.begun.take(count)
        continued += self._buffer.take(count - len(continued), self._version)
        held: Counter[str] = getattr(self._buffer, "dropped", None) or Counter()
        self._dropped.update({f"buffer/drop/{reason}": number for reason, number in held.items()})
        held.clear()
        self._num_continued += sum(bool(sample.num_sampled) for group in continued for sample in group.samples)
        fresh = self._rollout.new_groups(count - len(continued))
        self._fresh += fresh
        for group in [*continued, *fresh]:
            self._started.append(group.id)
            self._pipeline.submit(group)

    def _turn(self, group: Group) -> int:
        return self._started.index(group.id)

    def _in_turn(self, group: Group) -> Iterator[Group]:
        """The groups to be settled now that `group` has ended: it, or with `fixed_prompts` all that waited for it, as
        far as groups are needed."""
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
        return {"continue": True, "finished": group.finished, "drop": False}[self._cfg.surplus.name]

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
