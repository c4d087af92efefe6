"""Evaluation over HTTP against scripted engines; test_loop_sglang.py has it against SGLang."""

import asyncio

import pytest

from slime.config.schema import EvalConfig, EvalSamplingConfig, RewardConfig
from slime.errors import SlimeError
from slime.rollout.evaluate import evaluate
from slime.types import Prompt, Verdict

from .scripted_engine import Letters, Scorer, ScriptedEngine, connected

PROMPTS = [Prompt(f"eval/{number}", (), (number,), label=number) for number in range(5)]


def run(engine, scorer=None, version=3, max_in_flight=64, **cfg):
    async def main():
        async with engine, connected(engine.endpoint) as client:
            found = await evaluate(
                EvalConfig(sampling=EvalSamplingConfig(0.0, 1.0, -1, 9, None, []), **cfg),
                RewardConfig(name="scripted", max_failed_share=0.3),
                5,
                version,
                prompts=PROMPTS,
                tokenizer=Letters(),
                scorer=scorer or Scorer(),
                engines=[client],
                max_in_flight=max_in_flight,
                patience_s=60,
            )
            return found.stats

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
