"""The sampling loop over HTTP against scripted engines; `test_loop_sglang.py` has it against SGLang."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from slime.builtins import KeepAll
from slime.config.schema import RewardConfig, RolloutConfig, SamplingConfig
from slime.errors import SlimeError
from slime.rollout.buffer import FifoBuffer
from slime.rollout.loop import MAX_FRUITLESS, Rollout
from slime.types import Decision, Prompt, Status, Verdict, WeightSpan

from .scripted_engine import STOP_TOKEN, Letters, Scorer, ScriptedEngine, answer, connected

VERSION = 3


class Prompts:
    """Prompt n is the one token n."""

    def __init__(self):
        self.taken = 0

    def take(self, count):
        numbers = range(self.taken, self.taken + count)
        self.taken += count
        return [Prompt(f"0/{number}", (), (number,), label=number) for number in numbers]


class Filter:
    """Drops the prompts it was given."""

    def __init__(self, dropped):
        self.dropped = dropped

    def decide(self, group):
        drop = group.prompt.label in self.dropped
        return Decision(keep=False, reason="scripted") if drop else Decision(keep=True)


def config(**changes):
    sampling = SamplingConfig(max_response_tokens=changes.pop("max_response_tokens", 20))
    values = {"prompts_per_step": 4, "samples_per_prompt": 2, "max_requests_per_engine": 16, "sampling": sampling}
    return RolloutConfig(**values | changes)


def run(
    engine, steps=1, *, scorer=None, sample_filter=None, buffer=None, prompts=None, max_failed_share=0.1, **changes
):
    """Collect `steps` times, one weight version after the other; a failing step ends it with its error."""

    async def main():
        async with engine, connected(engine.endpoint) as client:
            rollout = Rollout(
                config(**changes),
                RewardConfig(name="scripted", max_failed_share=max_failed_share),
                5,
                tokenizer=Letters(),
                prompts=prompts or Prompts(),
                buffer=FifoBuffer() if buffer is None else buffer,
                sample_filter=sample_filter or KeepAll(),
                scorer=scorer or Scorer(),
                engines=[client],
            )
            collected = []
            for version in range(VERSION, VERSION + steps):
                engine.version = str(version)
                collected.append(await rollout.collect(version))
            return collected

    return asyncio.run(main())


def tokens(prompt_token, length):
    return [*(answer(prompt_token, position) for position in range(length - 1)), STOP_TOKEN]


def test_samples_carry_what_the_engine_said():
    (step,) = run(ScriptedEngine(lengths={1: 3}))
    sample = step.groups[1].samples[0]
    assert sample.response_tokens == tokens(1, 3)
    assert sample.logprobs == [-token / 100 for token in tokens(1, 3)]
    assert sample.spans == [WeightSpan(VERSION, 3)]
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
    assert [len(sample.response_tokens) for sample in step.groups[2].samples] == [7, 7]
    assert step.groups[2].samples[0].status is Status.TRUNCATED
    assert step.stats["rollout/truncated_share"] == 0.25
    assert step.stats["rollout/response_length_max"] == 7


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


EVERY_TOKEN_TAKES_A_WHILE = dict.fromkeys(range(20), 0.02)


def test_surplus_is_aborted_and_continued_under_the_next_weights():
    engine = ScriptedEngine(lengths={1: 10}, token_s=EVERY_TOKEN_TAKES_A_WHILE)
    steps = run(engine, 3, over_sampling=1.25)
    assert [group.id for group in steps[0].groups] == ["0/0", "0/2", "0/3", "0/4"]
    long = next(group for step in steps for group in step.groups if group.id == "0/1").samples[0]
    versions = [span.version for span in long.spans]
    assert long.response_tokens == tokens(1, 10)
    assert len(versions) > 1
    assert versions == list(range(VERSION, VERSION + len(versions)))
    assert steps[1].stats["rollout/continued_samples"] == 2
    assert engine.num_aborts >= len(versions) - 1


def test_every_request_may_end_before_its_abort_is_answered():
    engine = ScriptedEngine(lengths={1: 10}, token_s=EVERY_TOKEN_TAKES_A_WHILE)
    engine.abort_answer_s = 0.3
    (step,) = run(engine, over_sampling=1.25)
    assert len(step.groups) == 4
    assert engine.num_aborts == 1


def test_a_continued_request_has_the_rest_of_the_response_limit():
    engine = ScriptedEngine(lengths={1: 99}, token_s=EVERY_TOKEN_TAKES_A_WHILE)
    run(engine, 2, over_sampling=1.25, max_response_tokens=30)
    begun, continued = [body for body in engine.requests if body["input_ids"][0] == 1][1:3]
    assert len(continued["input_ids"]) > len(begun["input_ids"]) == 1
    for body in (begun, continued):
        assert body["sampling_params"]["max_new_tokens"] == 30 - (len(body["input_ids"]) - 1)


def test_a_response_that_ended_as_it_was_aborted_is_complete():
    engine, buffer = ScriptedEngine(lengths={1: 1}, token_s={1: 60.0}), FifoBuffer()
    run(engine, prompts_per_step=1, over_sampling=2.0, buffer=buffer)
    (group,) = buffer.take(1, VERSION)
    assert [(sample.status, sample.response_tokens) for sample in group.samples] == [
        (Status.COMPLETED, [STOP_TOKEN]),
        (Status.COMPLETED, [STOP_TOKEN]),
    ]


def test_a_response_that_reached_its_limit_as_it_was_aborted_is_truncated():
    engine, buffer = ScriptedEngine(lengths={1: 99}, token_s={1: 60.0}), FifoBuffer()
    run(engine, prompts_per_step=1, over_sampling=2.0, max_response_tokens=1, buffer=buffer)
    (group,) = buffer.take(1, VERSION)
    assert [(sample.status, len(sample.response_tokens)) for sample in group.samples] == [(Status.TRUNCATED, 1)] * 2


def test_a_stored_group_that_is_complete_is_only_scored():
    engine, buffer, prompts = ScriptedEngine(lengths={1: 1}, token_s={1: 60.0}), FifoBuffer(), Prompts()
    run(engine, prompts_per_step=1, over_sampling=2.0, buffer=buffer, prompts=prompts)
    engine = ScriptedEngine()
    (step,) = run(engine, prompts_per_step=1, buffer=buffer, prompts=prompts)
    assert [group.id for group in step.groups] == ["0/1"]
    assert not engine.requests


def test_a_response_that_ends_with_its_last_allowed_token_is_complete():
    (step,) = run(ScriptedEngine(lengths={1: 4}), max_response_tokens=4)
    assert step.stats["rollout/truncated_share"] == 0


def test_nothing_is_aborted_without_over_sampling():
    engine = ScriptedEngine(token_s={1: 0.01})
    run(engine, 2)
    assert engine.num_aborts == 0


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


def test_samples_whose_reward_failed_are_scored_again_after_the_stop():
    buffer, prompts = FifoBuffer(), Prompts()
    with pytest.raises(SlimeError):
        run(ScriptedEngine(), scorer=Scorer({(0, 0): FAILURES["error"]}), buffer=buffer, prompts=prompts)
    (step,) = run(ScriptedEngine(), buffer=buffer, prompts=prompts)
    assert all(len(group.rewards) == 2 for group in step.groups)


def test_reward_parts_become_metrics():
    parts = itertools.product(range(4), range(2))
    scorer = Scorer({key: Verdict.of(1.0, format=0.25) for key in parts})
    (step,) = run(ScriptedEngine(), scorer=scorer)
    assert step.stats["rollout/reward_part/format"] == 0.25


def test_a_full_buffer_drops_with_a_reason():
    engine = ScriptedEngine(token_s={1: 0.05, 3: 0.05})
    (step,) = run(engine, over_sampling=2.0, prompts_per_step=2, buffer=FifoBuffer(max_groups=1))
    assert [group.id for group in step.groups] == ["0/0", "0/2"]
    assert step.stats["buffer/drop/full"] == 1
    assert step.stats["rollout/buffered_groups"] == 1
