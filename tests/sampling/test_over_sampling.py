"""More groups begun than a step needs: what becomes of the surplus, and which groups the step takes."""

from __future__ import annotations

import pytest

from slime.config.choices import Surplus
from slime.errors import SlimeError
from slime.sampling.buffer import FifoBuffer
from slime.types import Status
from tests.engine_client.scripted_engine import STOP_TOKEN, ScriptedEngine
from tests.sampling.scripted_rollout import VERSION, Filter, Prompts, run, tokens

EVERY_TOKEN_TAKES_A_WHILE = dict.fromkeys(range(20), 0.05)
"""So that an abort comes before six tokens more, on a busy machine, too."""


def test_surplus_is_aborted_and_continued_under_the_next_weights():
    engine = ScriptedEngine(lengths={1: 10}, token_s=EVERY_TOKEN_TAKES_A_WHILE)
    steps = run(engine, 3, over_sampling=1.25)
    assert [group.id for group in steps[0].groups] == ["0/0", "0/2", "0/3", "0/4"]
    long = next(group for step in steps for group in step.groups if group.id == "0/1").samples[0]
    versions = [span.version for span in long.spans]
    assert long.segments[0].tokens == tokens(1, 10)
    assert len(versions) > 1
    assert versions == list(range(VERSION, VERSION + len(versions)))
    assert steps[1].stats["rollout/continued_samples"] == 2
    assert engine.num_aborts >= len(versions) - 1


@pytest.mark.parametrize("surplus", ["finished", "drop"])
def test_what_is_unfinished_is_dropped_and_counted(surplus):
    engine, buffer = ScriptedEngine(lengths={1: 10}, token_s=EVERY_TOKEN_TAKES_A_WHILE), FifoBuffer()
    (step,) = run(engine, over_sampling=1.25, surplus=Surplus[surplus], buffer=buffer)
    assert [group.id for group in step.groups] == ["0/0", "0/2", "0/3", "0/4"]
    assert len(buffer) == 0
    assert step.stats["rollout/dropped_groups"] == 1
    assert step.stats["rollout/length_bias"] < 0
    assert step.stats["rollout/continued_samples"] == step.stats["rollout/weight_lag_max"] == 0


@pytest.mark.parametrize(("surplus", "second_has", "dropped"), [("finished", "0/1", 1), ("drop", "0/3", 2)])
def test_finished_surplus_waits_for_the_next_step_or_is_dropped(surplus, second_has, dropped):
    """Prompts 0 and 1 end at one moment; prompt 2 takes longer."""
    engine, buffer = (
        ScriptedEngine(lengths={0: 1, 1: 1, 2: 10, 3: 1, 4: 10, 5: 10}, token_s=EVERY_TOKEN_TAKES_A_WHILE),
        FifoBuffer(),
    )
    first, second = run(engine, 2, prompts_per_step=1, over_sampling=3.0, surplus=Surplus[surplus], buffer=buffer)
    assert [group.id for step in (first, second) for group in step.groups] == ["0/0", second_has]
    assert first.stats["rollout/dropped_groups"] == dropped
    assert second.stats["rollout/weight_lag_max"] == (surplus == "finished")


@pytest.mark.parametrize(
    ("surplus", "carried"), [("continue", ["0/4", "0/5", "0/6", "0/7"]), ("finished", None), ("drop", [])]
)
def test_with_fixed_prompts_a_step_trains_on_what_was_begun_first(surplus, carried):
    engine, buffer = ScriptedEngine(lengths={1: 10}, token_s=EVERY_TOKEN_TAKES_A_WHILE), FifoBuffer()
    (step,) = run(engine, over_sampling=2.0, surplus=Surplus[surplus], fixed_prompts=True, buffer=buffer)
    assert [group.id for group in step.groups] == ["0/0", "0/1", "0/2", "0/3"]
    assert len(step.judged) == 4, "a group is decided once, when its turn has come"
    assert step.stats["rollout/length_bias"] >= 0
    stored = buffer.take(9, VERSION)
    assert all(group.finished for group in stored) if carried is None else [group.id for group in stored] == carried
    assert step.stats.get("rollout/dropped_groups") == (None if surplus == "continue" else 4 - len(stored))


@pytest.mark.parametrize("token_s", [{}, {0: 0.02}, {1: 0.02, 4: 0.02}])
def test_with_fixed_prompts_over_sampling_keeps_the_same_groups_whatever_the_timing(token_s):
    steps = run(
        ScriptedEngine(token_s=token_s), 2, sample_filter=Filter({1, 2, 6}), over_sampling=1.5, fixed_prompts=True
    )
    assert [group.id for step in steps for group in step.groups] == [f"0/{n}" for n in (0, 3, 4, 5, 7, 8, 9, 10)]


def test_a_step_that_fails_drops_nothing():
    engine, buffer = ScriptedEngine(token_s={2: 0.05, 3: 0.05}), FifoBuffer()
    engine.dies_after = 6
    with pytest.raises(SlimeError, match="no answer to /generate"):
        run(engine, buffer=buffer, max_requests_per_engine=3, over_sampling=1.25, surplus=Surplus["drop"])
    assert len(buffer) == 5


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
    assert [(sample.status, sample.segments[0].tokens) for sample in group.samples] == [
        (Status.COMPLETED, [STOP_TOKEN]),
        (Status.COMPLETED, [STOP_TOKEN]),
    ]


def test_a_response_that_reached_its_limit_as_it_was_aborted_is_truncated():
    engine, buffer = ScriptedEngine(lengths={1: 99}, token_s={1: 60.0}), FifoBuffer()
    run(engine, prompts_per_step=1, over_sampling=2.0, max_response_tokens=1, buffer=buffer)
    (group,) = buffer.take(1, VERSION)
    assert [(sample.status, sample.num_sampled) for sample in group.samples] == [(Status.TRUNCATED, 1)] * 2


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


def test_a_full_buffer_drops_with_a_reason():
    engine = ScriptedEngine(token_s={1: 60.0, 3: 60.0})
    (step,) = run(engine, over_sampling=2.0, prompts_per_step=2, buffer=FifoBuffer(max_groups=1))
    assert [group.id for group in step.groups] == ["0/0", "0/2"]
    assert step.stats["buffer/drop/full"] == 1
    assert step.stats["rollout/buffered_groups"] == 1
