"""The sampling loop of a run whose steps train on groups that were begun before (`rollout.max_staleness` above 0)."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from slime.sampling.attempts import begin_again
from slime.sampling.loop import Ahead, Collected, Judge, Progress, Rollout
from slime.sampling.pipeline import Pipeline
from slime.sampling.stats import step_stats
from slime.types import Group
from slime_filters.ahead.gate import EngineGate
from slime_filters.ahead.steps_ahead import StepsAhead


@dataclass(eq=False)
class GroupsAhead(Rollout):
    """Collects steps' groups, and goes on with those of steps to come.

    With P for `prompts_per_step`, (n + 1) P groups are under way when new weights come, less those that the steps to
    the end of the run do not need; n is what `StepsAhead` says, at most `max_staleness`. A step takes the P that were
    begun first, of those that the filter keeps, and waits for them; so each is trained on at most n versions after it
    was begun, and which prompts a step has does not depend on what is long. What a filter drops is made up for at once.

    Attributes:
        num_steps: of the whole run.
        begun: all of these groups; what a checkpoint had of them goes on.
    """

    num_steps: int = field(kw_only=True)

    def __post_init__(self) -> None:
        self._judge = Judge(self.sample_filter, self.cfg.prompts_per_step)
        self._version = self._num_used = self._num_begun_again = self._num_ahead = 0
        self._steps_ahead = StepsAhead(self.cfg.max_staleness)
        self._ended: dict[str, float] = {}  # by id, when
        self._pipeline: Pipeline | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def num_tokens(self) -> int:
        """Tokens of responses that ended since the last step was collected."""
        return self._pipeline.attempts.num_tokens if self._pipeline else 0

    def go_on(self, version: int) -> None:
        self._version, self._num_used = version, 0
        if self._pipeline is None:
            self._pipeline = self.begin(version)
            self._submit(group for name, group in self.begun.groups.items() if name not in self.begun.decisions)
            self._task = asyncio.ensure_future(self._run(self._pipeline))
        self._num_ahead = self._steps_ahead.begin(version, _now())
        self._begin()

    async def collect(self, version: int, progress: Progress = lambda kept, needed: None) -> Collected:
        """The groups of the step that trains weight `version`; waits for them. Raises as `Rollout.collect`."""
        assert version == self._version, "the step trains what was published last"
        assert self._pipeline, "weights were published"
        asked = _now()
        self._steps_ahead.ask(asked)
        while not self._may_be_used(groups := self._next_groups()):
            progress(sum(group.id in self.begun.decisions for group in groups), self.cfg.prompts_per_step)
            await self._change()
        now = _now()
        self._steps_ahead.take(version + 1, max(self._ended.get(group.id, asked) for group in groups), now)
        decisions = self.begun.decisions
        settled = [name for name, decision in decisions.items() if not decision.keep]
        settled += [group.id for group in groups]
        judged = [(self.begun.groups[name], decisions[name]) for name in self.begun.groups if name in settled]
        for name in settled:
            self.begun.remove(name)
            self._ended.pop(name, None)
        self._num_used += len(groups)
        stats = self._stats(groups, [group for group, _ in judged], self._pipeline)
        stats |= {"seconds/generate": now - asked, "seconds/reward": 0.0}
        return Collected(tuple(groups), tuple(judged), stats)

    async def close(self) -> None:
        if self._task and self._pipeline:
            self._task.cancel()
            with suppress(asyncio.CancelledError, Exception):  # what ended it has been raised
                await self._task
            await self._pipeline.cancel()
            self.__post_init__()  # `go_on` may follow

    def _next_groups(self) -> list[Group]:
        """What the step is to train on, as far as it was begun."""
        dropped = {name for name, decision in self.begun.decisions.items() if not decision.keep}
        left = [group for name, group in self.begun.groups.items() if name not in dropped]
        return left[: self.cfg.prompts_per_step]

    def _may_be_used(self, groups: list[Group]) -> bool:
        """Whether all of them have ended, and none is too old: such a one, which a run has that continues with a lower
        bound, is begun again."""
        if len(groups) < self.cfg.prompts_per_step or any(group.id not in self.begun.decisions for group in groups):
            return False
        old = [group for group in groups if staleness(group, self._version) > self.cfg.max_staleness]
        for group in old:
            del self.begun.decisions[group.id]
            for sample in group.samples:
                begin_again(sample)
        self._num_begun_again += len(old)
        self._submit(old)
        return not old

    async def _run(self, pipeline: Pipeline) -> None:
        while True:
            if not pipeline.active:
                await self._change()
                continue
            group = await pipeline.next_finished()
            self._ended[group.id] = _now()
            self.begun.decisions[group.id] = self._judge.decide(group, self._version)
            self._begin()

    async def _change(self) -> None:
        """Until groups are begun or have ended; raises what ended the loop."""
        changed = self._changed
        waiting = asyncio.ensure_future(changed.wait())
        others = [self._task] if self._task and self._task is not asyncio.current_task() else []
        try:
            await asyncio.wait([waiting, *others], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        for task in others:
            if task.done():
                task.result()

    def _begin(self) -> None:
        """As many new groups as there is room for, and as steps are left for."""
        a_step = self.cfg.prompts_per_step
        room = min(self._num_ahead + 1, self.num_steps - self._version) * a_step - self._num_used
        under_way = sum(
            decision is None or decision.keep for decision in map(self.begun.decisions.get, self.begun.groups)
        )
        if (count := room - under_way) > 0:
            groups = self.buffer.take(count, self._version)
            groups += self.new_groups(count - len(groups))
            self.begun.groups |= {group.id: group for group in groups}
            self._submit(groups)
        self._changed.set()
        self._changed = asyncio.Event()

    def _submit(self, groups: Iterable[Group]) -> None:
        assert self._pipeline
        for group in groups:
            self._pipeline.submit(group)

    def _stats(self, groups: list[Group], settled: list[Group], pipeline: Pipeline) -> dict[str, float]:
        """Metrics of the step's groups and of those dropped since the last one; tokens and seconds since then."""
        ages = [staleness(group, self._version) for group in groups]
        found = {
            **step_stats(settled, groups, self._version, self.cfg.max_staleness),
            "rollout/staleness_mean": statistics.fmean(ages),
            "rollout/staleness_max": float(max(ages)),
            "rollout/overlap_share": self.num_overlapped / max(1, self.num_tokens),
            "rollout/steps_ahead": float(self._num_ahead),
            "rollout/groups_ahead": float(len(self.begun.groups)),
            "rollout/finished_groups_ahead": float(len(self.begun.decisions)),
            "rollout/begun_again_groups": float(self._num_begun_again),
            **{reason: float(count) for reason, count in sorted(self._judge.dropped.items())},
            **pipeline.stats(),
        }
        pipeline.reset_counts()
        self._judge.dropped.clear()
        self.num_overlapped = self._num_begun_again = 0
        return found


def staleness(group: Group, version: int) -> int:
    """Versions between the oldest token of a group and `version`."""
    return max(
        (version - span.version for sample in group.samples for span in sample.spans if span.version is not None),
        default=0,
    )


def _now() -> float:
    return asyncio.get_running_loop().time()


def ahead() -> Ahead:
    """The contribution of the hook `slime_rollouts`."""
    return Ahead(EngineGate, GroupsAhead)
