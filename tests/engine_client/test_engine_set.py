"""Which of several engines a request goes to, over HTTP to scripted engines; test_loop_sglang.py has SGLang."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from slime.engine_client import engine_set
from slime.engine_client.client import EngineGone, FinishReason, ServerFault
from slime.engine_client.engine_set import EngineSet
from slime.errors import SlimeError
from slime.topology.engines import MAX_IMBALANCE
from tests.engine_client import virtual_clock
from tests.engine_client.scripted_engine import ScriptedEngine, connected

LIMIT = {"max_new_tokens": 9}


@asynccontextmanager
async def spread_over(*engines):
    """An `EngineSet` of engines, which are up within."""
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        yield EngineSet([await stack.enter_async_context(connected(engine.endpoint)) for engine in engines])


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
        several = EngineSet(engines)
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


@pytest.mark.parametrize(("rest_s", "asked_again"), [(engine_set.REST_S, []), (0.0, [[9]])])
def test_others_take_the_requests_of_an_engine_that_is_gone(monkeypatch, caplog, rest_s, asked_again):
    monkeypatch.setattr(engine_set, "REST_S", rest_s)
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
    said = [record.getMessage() for record in caplog.records if record.name == "slime.engine_client.engine_set"]
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


def test_engines_come_and_go_while_requests_are_on_their_way():
    engines = [virtual_clock.VirtualEngine(lambda prompt, seed: 10 * prompt) for _ in range(3)]
    limit = {"max_new_tokens": 100, "sampling_seed": 0}

    async def main():
        several = EngineSet(engines[:2])
        tasks = [asyncio.create_task(several.generate([prompt], limit)) for prompt in (1, 2, 3, 4)]
        await asyncio.sleep(1)
        several.remove(engines[0])
        several.add(engines[2])
        assert (list(several), several.num_generating) == (engines[1:], 2)
        tasks += [asyncio.create_task(several.generate([prompt], limit)) for prompt in (5, 6, 7, 8)]
        await asyncio.sleep(1)
        assert [engine.num_requests for engine in engines] == [2, 3, 3]
        assert {engine: load[0] for engine, load in (await several.loads()).items()} == dict.fromkeys(engines[1:], 3)
        answers = await asyncio.gather(*tasks)
        assert [len(answer.tokens) for answer in answers] == [10, 20, 30, 40, 50, 60, 70, 80]

    virtual_clock.run(main())


def test_an_engine_is_busy_while_it_has_a_request():
    engines = [virtual_clock.VirtualEngine(lambda prompt, seed: prompt) for _ in range(2)]
    limit = {"max_new_tokens": 100, "sampling_seed": 0}

    async def main():
        several = EngineSet(engines)
        tasks = [asyncio.create_task(several.generate([length], limit)) for length in (50, 3, 20)]
        await asyncio.sleep(10)
        assert list(several.busy_seconds().values()) == [10, 3]
        await asyncio.gather(*tasks)
        await asyncio.sleep(100)
        await several.generate([7], limit)
        assert several.busy_seconds() == {engines[0]: 57, engines[1]: 3}

    virtual_clock.run(main())


def test_an_engine_without_a_request_is_idle():
    """Since the question before, or since the first request; not before the run asks for anything."""
    engines = [virtual_clock.VirtualEngine(lambda prompt, seed: prompt) for _ in range(3)]
    limit = {"max_new_tokens": 100, "sampling_seed": 0}

    async def main():
        several = EngineSet(engines[:2])
        await asyncio.sleep(1000)
        assert several.idle_share() == 1
        await asyncio.gather(*(several.generate([length], limit) for length in (50, 30)))
        assert several.idle_share() == pytest.approx(1 - (50 + 30) / (2 * 50))
        await several.generate([40], limit)
        await asyncio.sleep(40)
        assert several.idle_share() == pytest.approx(1 - 40 / (2 * 80))
        several.remove(engines[0])
        several.add(engines[2])
        await several.generate([10], limit)
        assert several.idle_share() == pytest.approx(1 - 10 / 20)
        assert several.idle_share() == 1

        first = EngineSet(engines[:1])
        await asyncio.sleep(1000)
        await first.generate([50], limit)
        await asyncio.sleep(50)
        assert first.idle_share() == pytest.approx(0.5)

    virtual_clock.run(main())


def test_requests_wait_for_an_engine_that_comes_back():
    """It answers at another address, to the same requests. Who is told to abort meanwhile waits no longer."""
    dead, again = ScriptedEngine(), ScriptedEngine({1: 3})
    dead.dies_after = 0

    async def main():
        async with dead, again, connected(dead.endpoint) as client:
            alone = EngineSet([client], notice_s=5)
            waiting = [asyncio.create_task(alone.generate([number], LIMIT)) for number in (1, 2)]
            while not dead.requests:
                await asyncio.sleep(0.01)
            alone.lose(client)
            assert (alone.has_lost, alone.num_generating, await alone.loads()) == (True, 1, {})
            await alone.flush_cache()
            await asyncio.sleep(1.5)
            client.move(again.endpoint)
            alone.regain(client)
            answers = await asyncio.gather(*waiting)
            assert [len(answer.tokens) for answer in answers] == [3, 4]
            assert not alone.has_lost
            alone.lose(client)
            late = asyncio.create_task(alone.generate([3], LIMIT))
            await asyncio.sleep(0.1)
            await alone.abort_all()
            assert (await late).finish_reason is FinishReason.ABORT
            assert again.num_aborts == 0

    asyncio.run(main())


def test_requests_find_that_their_engine_has_died_also_once_it_is_back():
    """It comes back between two looks; while it was gone, nobody but they knew."""
    dead, again = ScriptedEngine(), ScriptedEngine({1: 3})
    dead.dies_after = 0

    async def main():
        async with dead, again, connected(dead.endpoint) as client:
            alone = EngineSet([client], notice_s=5)
            waiting = asyncio.create_task(alone.generate([1], LIMIT))
            while not dead.requests:
                await asyncio.sleep(0.01)
            client.move(again.endpoint)
            alone.lose(client)
            alone.regain(client)
            assert len((await waiting).tokens) == 3

    asyncio.run(main())


@pytest.mark.parametrize("has_died", [True, False])
def test_a_death_is_told_by_who_finds_it_and_a_lost_connection_here(caplog, has_died):
    gone, alive = Gone(), virtual_clock.VirtualEngine(lambda prompt, seed: prompt)

    async def main():
        several = EngineSet([gone, alive], notice_s=20)
        await several.generate([1], {"max_new_tokens": 9, "sampling_seed": 0})
        await asyncio.sleep(10)
        if has_died:
            several.lose(gone)
            several.regain(gone)
        await asyncio.sleep(20)

    virtual_clock.run(main())
    assert any("Others take its requests" in record.getMessage() for record in caplog.records) is not has_died


def test_an_engine_whose_death_nobody_notices_ends_the_step():
    dead = ScriptedEngine()
    dead.dies_after = 0

    async def main():
        async with dead, connected(dead.endpoint) as client:
            await EngineSet([client], notice_s=0.5).generate([1], LIMIT)

    with pytest.raises(SlimeError, match="The engine died or was never there"):
        asyncio.run(main())


def test_a_fault_of_an_engine_that_is_about_to_die_is_not_the_requests():
    """Behind a fault by its own account may be its death, which is known only soon."""
    engines = [Failing(), virtual_clock.VirtualEngine(lambda prompt, seed: prompt)]

    async def main():
        several = EngineSet(engines, notice_s=20)
        limit = {"max_new_tokens": 100, "sampling_seed": 0}
        task = asyncio.create_task(several.generate([7], limit))
        await asyncio.sleep(3)
        several.lose(engines[0])
        assert len((await task).tokens) == 7
        several.regain(engines[0])
        with pytest.raises(ServerFault):
            await asyncio.gather(*(several.generate([number], limit) for number in (8, 9)))

    virtual_clock.run(main())


class Gone:
    """Answers nothing."""

    url, num_generating = "gone", 1

    async def generate(self, input_ids, sampling):
        raise EngineGone("no answer", where="engine", todo="See its log.")


class Failing:
    """Cannot finish a request, by its own account."""

    url, num_generating = "failing", 1

    async def generate(self, input_ids, sampling):
        raise ServerFault("out of memory", where="engine", todo="See its log.")
