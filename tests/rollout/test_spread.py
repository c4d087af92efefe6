"""Which of several engines a request goes to, over HTTP to scripted engines; test_loop_sglang.py has SGLang."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from slime.errors import SlimeError
from slime.rollout import spread
from slime.rollout.spread import Spread, front
from slime.topology.server_fields import MAX_IMBALANCE

from . import virtual_clock
from .scripted_engine import ScriptedEngine, connected

LIMIT = {"max_new_tokens": 9}


@asynccontextmanager
async def spread_over(*engines):
    """A `Spread` over engines, which are up within."""
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        yield Spread([await stack.enter_async_context(connected(engine.endpoint)) for engine in engines])


def ask(engines, *inputs):
    """What engines answer to `inputs`, asked for at one moment."""

    async def main():
        async with spread_over(*engines) as several:
            return await asyncio.gather(*(several.generate(input_ids, LIMIT) for input_ids in inputs))

    return asyncio.run(main())


def prompts(engine):
    return [request["input_ids"] for request in engine.requests]


def test_the_samples_of_a_prompt_reach_one_engine_in_one_message():
    engines = [ScriptedEngine({1: 9, 2: 9}) for _ in range(2)]
    a, b = [1, 10, 11, 12], [2, 20, 21]
    answers = ask(engines, *[a] * MAX_IMBALANCE, *[b] * MAX_IMBALANCE)
    assert [prompts(engine) for engine in engines] == [[a] * MAX_IMBALANCE, [b] * MAX_IMBALANCE]
    assert [len(engine.messages) for engine in engines] == [1, 1]
    assert [answer.tokens[0] for answer in answers] == [113] * MAX_IMBALANCE + [122] * MAX_IMBALANCE


def test_engines_share_the_requests_evenly_though_all_begin_alike():
    engines = [ScriptedEngine() for _ in range(3)]
    ask(engines, *([*range(32), number] for number in range(130)))
    counts = [len(engine.requests) for engine in engines]
    assert sum(counts) == 130
    assert max(counts) - min(counts) <= MAX_IMBALANCE


def test_requests_that_differ_go_to_the_engine_with_the_fewest():
    engines = [virtual_clock.VirtualEngine(lambda prompt, seed: prompt) for _ in range(2)]
    limit = {"max_new_tokens": 100, "sampling_seed": 0}

    async def main():
        several = Spread(engines)
        tasks = [asyncio.create_task(several.generate([length], limit)) for length in (50, 3, 50, 4, 50, 5)]
        await asyncio.sleep(0)
        assert [engine.num_requests for engine in engines] == [3, 3]
        await asyncio.sleep(10)
        assert [engine.num_requests for engine in engines] == [3, 0]
        tasks += [asyncio.create_task(several.generate([60 + number], limit)) for number in range(3)]
        await asyncio.sleep(0)
        assert [engine.num_requests for engine in engines] == [3, 3]
        for task in tasks[:6]:  # who gives up counts no more
            task.cancel()
        await asyncio.wait(tasks[:6])
        tasks += [asyncio.create_task(several.generate([70 + number], limit)) for number in range(3)]
        await asyncio.sleep(0)
        assert [engine.num_requests for engine in engines] == [3, 3]
        await asyncio.gather(*tasks[6:])

    virtual_clock.run(main())


@pytest.mark.parametrize(("rest_s", "asked_again"), [(spread.REST_S, []), (0.0, [[9]])])
def test_others_take_the_requests_of_an_engine_that_is_gone(monkeypatch, caplog, rest_s, asked_again):
    monkeypatch.setattr(spread, "REST_S", rest_s)
    alive, dying = ScriptedEngine(), ScriptedEngine()
    dying.dies_after = 0

    async def main():
        async with spread_over(dying, alive) as several:
            answers = await asyncio.gather(*(several.generate([number], LIMIT) for number in range(1, 9)))
            assert [answer.tokens[0] for answer in answers] == [100 + 10 * number for number in range(1, 9)]
            num_tried = len(dying.requests)
            dying.dies_after = None
            await several.generate([9], LIMIT)
            assert prompts(dying)[num_tried:] == asked_again

    asyncio.run(main())
    said = [record.getMessage() for record in caplog.records if record.name == "slime.rollout.spread"]
    assert dying.endpoint.url in said[0]
    assert len(said) == 1 or not rest_s


def test_with_all_engines_gone_the_step_ends():
    engines = ScriptedEngine(), ScriptedEngine()
    for engine in engines:
        engine.dies_after = 0
    with pytest.raises(SlimeError, match=r"no answer to /generate: .*The engine died or was never there"):
        ask(engines, [1], [2])


def test_what_an_engine_refuses_is_not_tried_elsewhere():
    """It would be refused there too; and an engine that fails by its own account is to be seen."""
    engines = ScriptedEngine(), ScriptedEngine()
    engines[0].version = "unpublished"
    with pytest.raises(SlimeError, match="the engine serves 'unpublished' weights"):
        ask(engines, [1])
    assert not engines[1].requests


def test_nothing_stands_before_a_single_engine():
    engine = virtual_clock.VirtualEngine(lambda prompt, seed: 1)
    assert front([engine]) is engine
