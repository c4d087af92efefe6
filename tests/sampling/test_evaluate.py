"""Evaluation over HTTP against scripted engines; test_loop_sglang.py has it against SGLang."""

import asyncio

import pytest

from slime.builtins import Single
from slime.config.schema import (
    EvalConfig,
    EvalSamplingConfig,
    EvalSetConfig,
    EvalSetSamplingConfig,
    RewardConfig,
    RolloutConfig,
)
from slime.data.prompts import HeldOut
from slime.engine_client.engine_set import EngineSet
from slime.errors import SlimeError
from slime.sampling.evaluate import evaluate
from slime.sampling.sampler import ProgramBySet, Sampler, ScorerBySet
from slime.types import Prompt, Verdict
from tests.engine_client.scripted_engine import Letters, Scorer, ScriptedEngine, connected

PROMPTS = [Prompt(f"eval/{number}", (), (number,), label=number) for number in range(5)]


def run(engine, scorer=None, version=3, max_in_flight=64, **cfg):
    async def main():
        async with engine, connected(engine.endpoint) as client:
            rollout = RolloutConfig(max_requests_per_engine=max_in_flight)
            reward = RewardConfig(name="scripted", max_failed_share=0.3)
            sampler = Sampler(rollout, reward, 5, EngineSet([client]), Letters(), Single(), scorer or Scorer())
            sampling = EvalSamplingConfig(0.0, 1.0, -1, 9, None, [])
            held_out = HeldOut("", EvalConfig(sampling=sampling, **cfg), PROMPTS)
            return (await evaluate(sampler, [held_out], version))[1]

    return asyncio.run(main())


def test_every_prompt_is_asked_with_evaluations_own_sampling():
    engine = ScriptedEngine(lengths={4: 30})
    metrics = run(engine, samples_per_prompt=2, max_in_flight=3)
    assert metrics["eval/reward_mean"] == 0.5
    assert metrics["eval/response_length_mean"] == (4 * 4 + 9) / 5
    assert metrics["eval/truncated_share"] == 0.2
    assert metrics["eval/num_tokens"] == 2 * (4 * 4 + 9)
    assert engine.max_running <= 3
    assert {body["sampling_params"]["temperature"] for body in engine.requests} == {0.0}
    assert sorted(body["input_ids"][0] for body in engine.requests) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_no_batch_has_requests_of_an_evaluation_and_others():
    """The engine is made idle before the first request and after the last."""
    engine = ScriptedEngine()
    run(engine)
    assert engine.flushed_after == [0, 5]


def test_failed_rewards_are_left_out_and_counted():
    metrics = run(ScriptedEngine(), Scorer({(0, 0): Verdict.timeout("10 s"), (1, 0): Verdict.of(1.0)}))
    assert metrics["eval/reward_mean"] == 0.25
    assert metrics["eval/reward_timeout"] == 1


def test_too_many_failed_rewards_are_an_error():
    failed = {(number, 0): Verdict.invalid("no number") for number in range(2)}
    with pytest.raises(SlimeError, match="no value for 2 of 5 samples; the first was invalid at prompt eval/"):
        run(ScriptedEngine(), Scorer(failed))


def test_stale_weights_are_an_error():
    with pytest.raises(SlimeError, match="stale engine: it answered with weight version 3, not 4"):
        run(ScriptedEngine(), version=4)


class Twice:
    """Asks two times; the second response counts."""

    async def run(self, task, model):
        await model.respond()
        await model.respond()


def evaluated(sets, engine, told=None):
    async def main():
        async with engine, connected(engine.endpoint) as client:
            rollout, reward = RolloutConfig(), RewardConfig(name="scripted")
            program = ProgramBySet(Single(), {"eval/hard": Twice()})
            scorer = ScorerBySet(Scorer(), {"eval/hard": Scorer({(7, 0): Verdict.of(8.0), (7, 1): Verdict.of(0.0)})})
            sampler = Sampler(rollout, reward, 5, EngineSet([client]), Letters(), program, scorer)
            return (await evaluate(sampler, sets, 3, told or (lambda finished, total: None)))[1]

    return asyncio.run(main())


MAIN = HeldOut("", EvalConfig(sampling=EvalSamplingConfig(0.0, 1.0, -1, 9, None, [])), PROMPTS)


def test_each_named_set_has_its_own_reward_program_sampling_and_metrics():
    sampling = EvalSetSamplingConfig(0.6, 0.9, -1, 3, None, [])
    own = EvalSetConfig("hard.jsonl", samples_per_prompt=2, pass_threshold=8.0, sampling=sampling)
    hard = HeldOut("hard", own, [Prompt("eval/hard/1", (), (7,), label=7, set="eval/hard")])
    engine, told = ScriptedEngine(), []
    stats = evaluated([MAIN, hard], engine, lambda *numbers: told.append(numbers))
    alone = evaluated([MAIN], ScriptedEngine())
    assert {name: stats[name] for name in alone if name != "seconds/eval"} == {
        name: value for name, value in alone.items() if name != "seconds/eval"
    }
    assert stats["eval/hard/reward_mean"] == 4.0
    assert stats["eval/hard/pass_at_2"] == 1.0
    assert (stats["eval/hard/response_length_mean"], stats["eval/hard/truncated_share"]) == (3, 1.0)
    asked = [body for body in engine.requests if body["input_ids"][0] == 7]
    assert len(asked) == 4, "its program asks twice for each of two samples"
    assert {(body["sampling_params"]["temperature"], body["sampling_params"]["top_p"]) for body in asked} == {
        (0.6, 0.9)
    }
    assert told == [(number, 6) for number in range(1, 7)]
    assert engine.flushed_after == [0, 5, 5, 9], "sets of different sampling share no batch"
