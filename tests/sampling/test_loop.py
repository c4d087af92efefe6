"""The sampling loop over HTTP against scripted engines; `test_loop_sglang.py` has it against SGLang."""

from __future__ import annotations

import gc
import itertools

import pytest

from slime.config.schema import FilterConfig, RewardConfig
from slime.errors import SlimeError
from slime.registry import Contribution, Registry
from slime.sampling.buffer import FifoBuffer
from slime.sampling.guarded import FilterChain
from slime.sampling.loop import MAX_FRUITLESS
from slime.sampling.pipeline import FailureBudget, Pipeline
from slime.segments import Segment, WeightSpan
from slime.types import Decision, Prompt, Sample, Status, Verdict
from tests.engine_client.scripted_engine import Scorer, ScriptedEngine
from tests.sampling.scripted_rollout import VERSION, Filter, Prompts, run, tokens


def test_samples_carry_what_the_engine_said():
    (step,) = run(ScriptedEngine(lengths={1: 3}))
    sample = step.groups[1].samples[0]
    logprobs = [-token / 100 for token in tokens(1, 3)]
    assert sample.segments == [Segment((1,), tokens(1, 3), logprobs, [1] * 3, [WeightSpan(VERSION, 3)])]
    assert sample.status is Status.COMPLETED
    assert sample.response == "".join(chr(token) for token in tokens(1, 3)[:-1])
    assert sample.reward == 0.0


def test_groups_stand_in_the_order_of_their_prompts_however_they_finish():
    slow_first = {0: 0.05, 1: 0.03, 2: 0.01}
    scorer = Scorer()
    (step,) = run(ScriptedEngine(token_s=slow_first), scorer=scorer)
    assert [group.id for group in step.groups] == ["0/0", "0/1", "0/2", "0/3"]
    assert [prompt for prompt, _ in scorer.scored[::2]] == ["0/3", "0/2", "0/1", "0/0"]


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_requests_at_once_than_configured(limit):
    engine = ScriptedEngine(token_s=dict.fromkeys(range(4), 0.002))
    run(engine, max_requests_per_engine=limit)
    assert engine.max_running == limit
    assert len(engine.requests) == 8


def test_rewards_run_while_others_are_generated():
    engine = ScriptedEngine(token_s={3: 0.05})
    scorer = Scorer(seconds=0.01)
    (step,) = run(engine, scorer=scorer)
    assert scorer.scored[-1][0] == "0/3"
    assert step.stats["seconds/generate"] >= 0.2 > step.stats["seconds/reward"] >= 0.01


def test_truncated_samples_are_said_to_be():
    (step,) = run(ScriptedEngine(lengths={2: 99}), max_response_tokens=7)
    assert [sample.num_sampled for sample in step.groups[2].samples] == [7, 7]
    assert step.groups[2].samples[0].status is Status.TRUNCATED
    assert step.stats["rollout/truncated_share"] == 0.25
    assert step.stats["rollout/response_length_max"] == 7


def test_what_a_step_leaves_waits_for_no_collection_of_garbage():
    """A run collects garbage after half a million objects, which would be all pipelines of thousands of steps."""
    gc.collect()
    gc.disable()
    try:
        run(ScriptedEngine(), steps=3)
        assert [each for each in gc.get_objects() if isinstance(each, Pipeline)] == []
    finally:
        gc.enable()


def test_statistics():
    (step,) = run(ScriptedEngine(lengths={0: 2, 1: 6}))
    assert step.stats["rollout/reward_mean"] == step.stats["rollout/reward_std"] == 0.5
    assert step.stats["rollout/response_length_mean"] == 4
    assert step.stats["rollout/num_tokens"] == 2 * (2 + 6 + 4 + 4)
    assert step.stats["rollout/continued_samples"] == step.stats["rollout/reward_error"] == 0
    assert "rollout/draft_accept_rate" not in step.stats


def test_accepted_drafts_are_counted():
    engine = ScriptedEngine()
    engine.drafts = {"spec_num_proposed_drafts": 4, "spec_num_correct_drafts": 3}
    (step,) = run(engine)
    assert step.stats["rollout/draft_accept_rate"] == 0.75


def test_every_request_has_a_seed_of_its_own_and_the_same_in_the_next_run():
    def seeds():
        engine = ScriptedEngine()
        run(engine)
        return [body["sampling_params"]["sampling_seed"] for body in engine.requests]

    first = seeds()
    assert len(set(first)) == len(first) == 8
    assert first == seeds()
    assert all(0 <= seed < 2**63 for seed in first)


def test_a_stale_engine_stops_the_run():
    engine = ScriptedEngine()

    class Stale(ScriptedEngine):
        version = property(lambda self: "2", lambda self, value: None)

    with pytest.raises(SlimeError, match="stale engine: it answered with weight version 2, not 3"):
        run(Stale())
    run(engine)


def test_an_engine_that_dies_stops_the_run_and_nothing_finished_is_lost():
    engine, buffer, prompts = ScriptedEngine(token_s={2: 0.05, 3: 0.05}), FifoBuffer(), Prompts()
    engine.dies_after = 6
    with pytest.raises(SlimeError, match=r"engine http://127.0.0.1:\d+: no answer to /generate"):
        run(engine, buffer=buffer, prompts=prompts, max_requests_per_engine=3)
    assert prompts.taken == len(buffer) == 4
    engine = ScriptedEngine()
    (step,) = run(engine, buffer=buffer, prompts=prompts)
    assert sorted(group.id for group in step.groups) == ["0/0", "0/1", "0/2", "0/3"]
    assert prompts.taken == 4
    assert len(engine.requests) < 8
    assert all(sample.reward is not None for group in step.groups for sample in group.samples)


def test_an_abort_that_nobody_here_asked_for_stops_the_run():
    engine = ScriptedEngine()
    engine.aborts_itself = True
    with pytest.raises(SlimeError, match=r"prompt 0/\d: an engine aborted a request on its own"):
        run(engine)


def test_dropped_groups_are_replaced_and_counted():
    (step,) = run(ScriptedEngine(), sample_filter=Filter({1, 2}))
    assert [group.id for group in step.groups] == ["0/0", "0/3", "0/4", "0/5"]
    assert step.stats["filter/drop/scripted"] == 2


class Shorter:
    """Takes 0.5 off responses of more than 4 tokens."""

    def shape(self, group):
        return [-0.5 * (sample.num_sampled > 4) for sample in group.samples]

    def decide(self, group):
        return Decision(keep=True)


def test_what_filters_add_is_trained_on_and_told_apart_from_the_reward():
    registry = Registry("filter", [Contribution("filter", "shorter", Shorter, "slime-odd", "1.2")])
    chain = FilterChain(registry, FilterConfig("shorter"), 10)
    (step,) = run(ScriptedEngine(lengths={1: 6}), sample_filter=chain)
    (plain,) = run(ScriptedEngine(lengths={1: 6}))
    assert step.groups[1].rewards == [-0.5, 0.5]
    assert step.stats["rollout/reward_mean"] == plain.stats["rollout/reward_mean"] == 0.5
    assert step.stats["rollout/shaping_mean"] == -0.5 * 2 / 8
    assert step.stats["rollout/shaped_share"] == 2 / 8
    assert "rollout/shaping_mean" not in plain.stats


@pytest.mark.parametrize("token_s", [{}, {0: 0.02}, {1: 0.02, 4: 0.02}])
def test_which_groups_are_kept_does_not_depend_on_timing(token_s):
    engine = ScriptedEngine(token_s=token_s)
    steps = run(engine, 2, sample_filter=Filter({1, 2, 6}))
    assert [group.id for step in steps for group in step.groups] == [f"0/{n}" for n in (0, 3, 4, 5, 7, 8, 9, 10)]


def test_a_filter_that_keeps_nothing_stops_the_run():
    prompts = Prompts()
    with pytest.raises(SlimeError, match=r"the filter dropped 40 groups one after the other; 40 filter/drop/scripted"):
        run(ScriptedEngine(), sample_filter=Filter(range(1000)), prompts=prompts, prompts_per_step=2)
    assert prompts.taken <= (MAX_FRUITLESS + 1) * 2


FAILURES = {
    "invalid": Verdict.invalid("no number"),
    "timeout": Verdict.timeout("10 s"),
    "error": Verdict.error("ZeroDivisionError"),
}


@pytest.mark.parametrize("cause", FAILURES)
def test_failed_rewards_are_counted_and_never_zero(cause):
    scorer = Scorer({(0, 0): FAILURES[cause], (1, 1): Verdict.of(5.0)})
    (step,) = run(ScriptedEngine(), scorer=scorer, samples_per_prompt=3, max_failed_share=0.1)
    assert step.groups[0].rewards == [1.0, 0.0]
    assert step.stats[f"rollout/reward_{cause}"] == 1
    assert sum(step.stats[f"rollout/reward_{other}"] for other in FAILURES) == 1
    assert step.stats["rollout/reward_mean"] == pytest.approx((1 + 5 + 1 + 1) / 11)


def test_too_many_failed_rewards_stop_the_run_with_the_first_reason():
    failed = {(number, 0): FAILURES["error"] for number in range(4)}
    buffer = FifoBuffer()
    with pytest.raises(
        SlimeError, match=r"reward 'scripted': no value for 1 of 8 samples; the first was error at prompt"
    ):
        run(ScriptedEngine(), scorer=Scorer(failed), buffer=buffer)
    assert len(buffer) == 4


@pytest.mark.parametrize(
    ("status", "where", "whose"),
    [(Status.COMPLETED, "reward 'sum'", "reward"), (Status.FAILED, "program of the samples", "program")],
)
def test_who_failed_first_is_named(status, where, whose):
    sample = Sample(Prompt("0/0", (), (1,), None, {}), 0, status=status)
    with pytest.raises(SlimeError, match=f"^{where}: no value for 1 of 8 samples.* Mend the {whose} or its data"):
        FailureBudget(RewardConfig(name="sum", max_failed_share=0.0), 8).add(sample, Verdict.error("ValueError: x"))


def test_the_share_of_failures_that_is_allowed_may_be_reached():
    sample, failed = Sample(Prompt("0/0", (), (1,), None, {}), 0, status=Status.COMPLETED), Verdict.error("x")
    budget = FailureBudget(RewardConfig(name="sum", max_failed_share=0.25), 8)
    budget.add(sample, failed)
    budget.add(sample, failed)
    with pytest.raises(SlimeError, match="no value for 3 of 8 samples"):
        budget.add(sample, failed)


def test_samples_whose_reward_failed_are_scored_again_after_the_stop():
    buffer, prompts = FifoBuffer(), Prompts()
    with pytest.raises(SlimeError):
        run(ScriptedEngine(), scorer=Scorer({(0, 0): FAILURES["error"]}), buffer=buffer, prompts=prompts)
    (step,) = run(ScriptedEngine(), buffer=buffer, prompts=prompts)
    assert all(len(group.rewards) == 2 for group in step.groups)
    assert [group.id for group in step.groups] == [f"0/{n}" for n in range(4)], "none was dropped for want of a value"


def test_reward_parts_become_metrics():
    parts = itertools.product(range(4), range(2))
    scorer = Scorer({key: Verdict.of(1.0, format=0.25) for key in parts})
    (step,) = run(ScriptedEngine(), scorer=scorer)
    assert step.stats["rollout/reward_part/format"] == 0.25
