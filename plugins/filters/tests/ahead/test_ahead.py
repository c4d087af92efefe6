"""Steps that train on groups begun before: the real loop, gate and pipeline and a slow trainer, on a virtual clock."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from slime import driver_state
from slime.algo.advantages import GroupMean
from slime.builtins import KeepAll, Single
from slime.config.choices import Publish
from slime.config.schema import EvalConfig, RewardConfig, RolloutConfig, SamplingConfig
from slime.data.prompts import HeldOut
from slime.engine_client.engine_set import EngineSet
from slime.errors import SlimeError
from slime.sampling.buffer import Begun, FifoBuffer
from slime.sampling.evaluate import evaluate
from slime.sampling.loop import Collected, Rollout
from slime.sampling.sampler import Sampler
from slime.types import Group, Verdict
from slime_filters.ahead.gate import EngineGate
from slime_filters.ahead.rollout import GroupsAhead, staleness
from tests.advantages import to_train_samples
from tests.engine_client.scripted_engine import Letters, Scorer
from tests.engine_client.virtual_clock import VirtualEngine, run
from tests.sampling.scripted_rollout import Filter, Prompts

STEPS, A_STEP, LONGEST = 20, 4, 2000
TRAIN_S = 300.0
EVALUATION = EvalConfig(samples_per_prompt=2, sampling=SamplingConfig(max_response_tokens=50))


def length(prompt_token: int, seed: int) -> int:
    """Lognormal, as responses' lengths are."""
    return min(LONGEST, 1 + int(math.exp(random.Random(seed).gauss(math.log(200), 1.0))))


class Bench:
    """A run on a virtual clock. Its state is what a checkpoint has, in the bytes of one."""

    def __init__(
        self,
        bound: int,
        *,
        sample_filter: Any = None,
        scorer: Any = None,
        max_failed_share: float = 0.1,
        length: Callable[[int, int], int] = length,
    ) -> None:
        self.cfg = RolloutConfig(
            prompts_per_step=A_STEP,
            samples_per_prompt=2,
            max_staleness=bound,
            publish=Publish.abort,
            sampling=SamplingConfig(max_response_tokens=LONGEST),
        )
        self.prompts, self.begun, self.engine = Prompts(), Begun(), VirtualEngine(length)
        self.filter, self.scorer, self.max_failed_share = (
            sample_filter or KeepAll(),
            scorer or Scorer(),
            max_failed_share,
        )
        self.version, self.train_s = 0, TRAIN_S
        self.steps: list[Collected] = []

    async def train(self, num_steps: int, *, evaluates: bool = False, returns: tuple[int, int] | None = None) -> None:
        """The next steps, up to the checkpoint behind the last of them. Behind the second of the two steps in `returns`
        trainers are lost, once, and all returns to a checkpoint behind the first."""
        engines = EngineSet([self.engine])
        gate = EngineGate(engines, self.cfg.publish, 600.0)
        reward = RewardConfig(name="scripted", max_failed_share=self.max_failed_share)
        sampler = Sampler(self.cfg, reward, 5, engines, Letters(), Single(), self.scorer, None, gate)
        sources = {"prompts": self.prompts, "buffer": FifoBuffer(), "sample_filter": self.filter, "begun": self.begun}
        rollout = GroupsAhead(self.cfg, sampler, num_steps=STEPS, **sources)

        async def publish() -> None:
            await gate.close()
            self.engine.version = self.version
            await gate.open(self.version)
            rollout.go_on(self.version)

        try:
            await publish()
            last = len(self.steps) + num_steps
            while len(self.steps) < last:
                if returns and len(self.steps) == returns[0]:
                    saved = driver_state.dumps(self.begun.state_dict()), self.prompts.taken
                if returns and len(self.steps) == returns[1]:
                    await gate.close()  # as they were publishing
                    await gate.open(gate.version)
                    await rollout.close()
                    self.begun.load_state_dict(driver_state.loads(saved[0]))
                    self.prompts.taken, self.version = saved[1], returns[0]
                    del self.steps[returns[0] :]
                    returns = None
                    await publish()
                self.steps.append(await rollout.collect(self.version))
                before = rollout.num_tokens
                await asyncio.sleep(self.train_s)
                rollout.num_overlapped += rollout.num_tokens - before
                self.version += 1
                await publish()
                if evaluates:
                    held_out = HeldOut("", EVALUATION, Prompts().take(5))
                    groups, _ = await evaluate(sampler, [held_out], self.version)
                    assert {s.version for g in groups for one in g.samples for s in one.spans} == {self.version}
        finally:
            self.seconds = asyncio.get_running_loop().time()
            self.saved = driver_state.dumps(self.begun.state_dict())
            await rollout.close()

    def rollout(self) -> Rollout:
        """Of a run that generates nothing ahead."""
        engines, reward = EngineSet([self.engine]), RewardConfig(name="scripted")
        sampler = Sampler(self.cfg, reward, 5, engines, Letters(), Single(), self.scorer)
        sources = {"prompts": self.prompts, "buffer": FifoBuffer(), "sample_filter": self.filter, "begun": self.begun}
        return Rollout(self.cfg, sampler, **sources)

    def killed(self, **changes: Any) -> Bench:
        """The run as it goes on from its checkpoint."""
        other = Bench(**{"bound": self.cfg.max_staleness} | changes)
        other.prompts.taken, other.version = self.prompts.taken, self.version
        other.begun.load_state_dict(driver_state.loads(self.saved))
        return other

    @property
    def used(self) -> list[int]:
        return [group.prompt.label for step in self.steps for group in step.groups]


def done(bound: int, **changes: Any) -> Bench:
    bench = Bench(bound, **changes)
    run(bench.train(STEPS))
    return bench


@pytest.mark.parametrize("bound", [1, 2, 3])
@pytest.mark.parametrize("train_s", [1.0, TRAIN_S, 10_000.0])
def test_no_token_older_than_the_bound_is_trained_on(bound: int, train_s: float):
    bench = Bench(bound)
    bench.train_s = train_s
    run(bench.train(STEPS))
    seen = set()
    for version, step in enumerate(bench.steps):
        ages = [staleness(group, version) for group in step.groups]
        lags = {version - s.version for g in step.groups for one in g.samples for s in one.spans}
        assert max(ages) == max(lags) == step.stats["rollout/staleness_max"] <= bound
        assert step.stats["rollout/staleness_mean"] == sum(ages) / len(ages)
        assert step.stats["rollout/weight_lag_masked_share"] == 0
        trained = to_train_samples(step.groups, GroupMean(normalize_std=True), version, bench.cfg.oldest_trained)
        sampled = sum(sample.num_sampled for group in step.groups for sample in group.samples)
        assert sum(sample.loss_mask.sum() for sample in trained) == sampled, "nothing was masked"
        seen |= lags
    assert bound in seen, "the bound is reached, so it is one"


def test_every_prompt_is_trained_once_and_in_order():
    bench = done(2)
    assert bench.used == list(range(STEPS * A_STEP))
    assert bench.prompts.taken == STEPS * A_STEP, "none is begun that no step needs"
    assert not bench.begun.groups
    assert bench.engine.num_tokens == sum(s.num_sampled for step in bench.steps for g in step.groups for s in g.samples)


def test_responses_are_generated_while_the_trainer_works():
    """Counted in tokens of responses that ended then, and by the virtual clock: a step without staleness takes both."""
    alone = Bench(0)

    async def in_turns() -> float:
        rollout = alone.rollout()
        for alone.engine.version in range(STEPS):
            await rollout.collect(alone.engine.version)
            await asyncio.sleep(1000)
        return asyncio.get_running_loop().time()

    before = run(in_turns())
    for bound, most in ((1, 0.75), (2, 0.7)):
        bench = Bench(bound)
        bench.train_s = 1000
        run(bench.train(STEPS))
        assert bench.seconds < most * before
        assert bench.steps[0].stats["rollout/overlap_share"] == 0
        counts = [(step.stats["rollout/num_tokens"], step.stats["rollout/overlap_share"]) for step in bench.steps]
        assert sum(tokens for tokens, _ in counts) == bench.engine.num_tokens
        assert sum(tokens * share for tokens, share in counts) > 0.5 * bench.engine.num_tokens
        for left, step in enumerate(reversed(bench.steps)):
            assert step.stats["rollout/groups_ahead"] >= min(step.stats["rollout/steps_ahead"], left) * A_STEP
            assert step.stats["rollout/groups_ahead"] <= min(bound, left) * A_STEP


@pytest.mark.parametrize(("train_s", "number"), [(2.0 * LONGEST, 1), (0.8 * LONGEST, 2), (1.0, 3)])
def test_groups_begin_as_far_ahead_as_keeps_the_trainers_from_waiting(train_s: float, number: int):
    """Each response takes nearly `LONGEST` seconds. Where trainers are slow, nothing is lost by beginning late."""
    bench = Bench(3, length=lambda prompt_token, seed: LONGEST - prompt_token % 7)
    bench.train_s = train_s
    run(bench.train(STEPS))
    later = bench.steps[2 * (3 + 1) :]
    assert {step.stats["rollout/steps_ahead"] for step in later} == {number}
    assert {step.stats["rollout/staleness_max"] for step in later} == {number}
    if number < 3:
        assert bench.seconds == LONGEST + STEPS * train_s


def test_replacements_for_what_a_filter_drops_count_as_time_of_their_step():
    """Half of the groups are dropped, so a step takes several rounds: begun one step ahead it would come too late."""
    filters = (None, Filter(range(0, 1000, 2)))
    kept, dropping = (Bench(3, length=lambda prompt_token, seed: 100, sample_filter=chosen) for chosen in filters)
    for bench in (kept, dropping):
        bench.train_s = 150.0
        run(bench.train(STEPS))
    assert kept.steps[-1].stats["rollout/steps_ahead"] == 1
    assert dropping.steps[-1].stats["rollout/steps_ahead"] > 1
    assert sum(step.stats["seconds/generate"] for step in dropping.steps[8:]) == 0


def test_versions_of_tokens_are_those_that_the_engine_had():
    """By their number: what was generated until a publish is of the version before."""
    steps = done(1).steps
    crossing = [s for step in steps for g in step.groups for one in g.samples for s in one.segments if len(s.spans) > 1]
    assert crossing, "none was generated over a publish"
    for segment in crossing:
        segment.check()
        first, second = (span.version for span in segment.spans[:2])
        assert second == first + 1


def test_what_a_filter_drops_is_made_up_for_and_counted():
    dropped = [2, 3, 17, 40]
    bench = done(1, sample_filter=Filter(dropped))
    assert bench.used == [number for number in range(STEPS * A_STEP + len(dropped)) if number not in dropped]
    assert sum(step.stats.get("filter/drop/scripted", 0) for step in bench.steps) == len(dropped)
    judged = [group.id for step in bench.steps for group, _ in step.judged]
    assert len(judged) == len(set(judged)) == STEPS * A_STEP + len(dropped)
    assert max(step.stats["rollout/staleness_max"] for step in bench.steps) == 1


class Sets(Prompts):
    """Every third prompt is of the set `code`."""

    def take(self, count):
        return [replace(each, set="" if each.label % 3 else "code") for each in super().take(count)]


@pytest.mark.parametrize("bound", [0, 1])
def test_each_prompt_set_has_metrics_of_its_own(bound: int):
    bench = Bench(bound)
    bench.prompts = Sets()

    async def steps() -> list[Collected]:
        if bound:
            await bench.train(STEPS)
            return bench.steps
        rollout = bench.rollout()
        return [await rollout.collect(0) for _ in range(3)]

    found = run(steps())
    for number, step in enumerate(found):
        of_code = sum(label % 3 == 0 for label in range(number * A_STEP, (number + 1) * A_STEP))
        counts = [step.stats[f"rollout/{name}/groups"] for name in ("code", "main")]
        assert counts == [of_code, A_STEP - of_code]
        assert step.stats["rollout/code/reward_mean"] == 0.5


def test_a_filter_that_keeps_nothing_ends_the_run():
    with pytest.raises(SlimeError, match="the filter dropped 80 groups one after the other"):
        done(1, sample_filter=Filter(range(10_000)))


def test_failed_rewards_are_counted_by_step():
    """Each may have its share of them."""
    fails = {(prompt, 0): Verdict.error("scripted") for prompt in (5, 22, 41)}
    bench = done(1, scorer=Scorer(fails), max_failed_share=0.13)
    assert sum(step.stats["rollout/reward_error"] for step in bench.steps) == len(fails)
    with pytest.raises(SlimeError, match=r"no value for \d of \d+ samples; the first was error at prompt 0/5"):
        done(1, scorer=Scorer(fails), max_failed_share=0.01)


@pytest.mark.parametrize("at", [1, 2, 7, STEPS - 1])
def test_a_run_that_is_killed_goes_on_with_what_was_begun(at: int):
    """No prompt is lost and none is trained twice; what had ended is not generated again; the counters go on."""
    bench = Bench(2)
    run(bench.train(at))
    ended = {
        (sample.prompt.label, sample.index): sample.segments[0].tokens
        for group in bench.begun.groups.values()
        for sample in group.samples
        if sample.verdict
    }
    assert len(bench.begun.groups) == min(3, STEPS - at) * A_STEP
    other = bench.killed()
    assert other.begun.groups.keys() == bench.begun.groups.keys()
    run(other.train(STEPS - at))
    assert bench.used + other.used == list(range(STEPS * A_STEP))
    assert other.prompts.taken == STEPS * A_STEP
    kept = {
        (s.prompt.label, s.index): s.segments[0].tokens for step in other.steps for g in step.groups for s in g.samples
    }
    assert ended.items() <= kept.items()
    assert other.engine.num_tokens == sum(map(len, kept.values())) - sum(map(len, ended.values()))
    for version, step in enumerate(other.steps, start=at):
        assert max(staleness(group, version) for group in step.groups) <= 2


@pytest.mark.parametrize("bound", [1, 3])
def test_a_run_that_lost_its_trainers_returns_to_what_was_begun_by_then(bound: int):
    """In the same process: what was begun since is dropped, and nothing is lost or trained twice."""
    bench = Bench(bound)
    run(bench.train(STEPS, returns=(2, 5)))
    assert bench.used == list(range(STEPS * A_STEP))
    assert bench.prompts.taken == STEPS * A_STEP
    assert not bench.begun.groups
    for version, step in enumerate(bench.steps):
        assert max(staleness(group, version) for group in step.groups) <= bound
        assert {s.version for g in step.groups for one in g.samples for s in one.spans} <= set(range(version + 1))


def test_a_lower_bound_has_what_is_too_old_begun_again():
    bench = Bench(3)
    run(bench.train(6))
    other = bench.killed(bound=1)
    run(other.train(STEPS - 6))
    assert bench.used + other.used == list(range(STEPS * A_STEP))
    assert sum(step.stats["rollout/begun_again_groups"] for step in other.steps) > 0
    for version, step in enumerate(other.steps, start=6):
        assert max(staleness(group, version) for group in step.groups) <= 1


def test_without_staleness_a_run_goes_on_with_what_was_begun_ahead():
    bench = Bench(2)
    run(bench.train(6))
    other = bench.killed(bound=0)

    async def collect() -> list[Group]:
        rollout, other.engine.version = other.rollout(), 6
        return [group for _ in range(5) for group in (await rollout.collect(6)).groups]

    assert bench.used + [group.prompt.label for group in run(collect())] == list(range(11 * A_STEP))


def test_evaluation_runs_beside_and_is_of_its_version():
    bench = Bench(2)
    run(bench.train(STEPS, evaluates=True))
    assert bench.used == list(range(STEPS * A_STEP))
