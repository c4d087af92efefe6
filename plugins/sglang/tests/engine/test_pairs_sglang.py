"""A prefill and a decode engine of SGLang, on this machine, over mooncake's TCP.

That they draw what one engine draws is shown by a whole run (tests/test_run_placements.py).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import psutil
import pytest

from slime.compose.compose import compose
from slime.config.schema import SlimeConfig
from slime.engine_client.client import FinishReason
from slime.errors import SlimeError
from slime.net import LOOPBACK, new_key
from slime.reward.service import RewardService
from slime.topology.topology import read_topology
from slime_sglang.engine.driver.client import SGLangClient
from slime_sglang.engine.driver.pairs import Pairs
from slime_sglang.engine.driver.process import EngineProcess
from slime_sglang.engine.driver.room import require_room
from slime_testing.engines import hf_tensors, server, started
from slime_testing.patience import Patience, family
from slime_testing.publishing import publish
from tests.sampling.test_loop_sglang import Bench, responses

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("_mooncake")]
LONG = {"max_new_tokens": 400, "ignore_eos": True}


@pytest.fixture(scope="module")
def cfg() -> SlimeConfig:
    few = ["rollout.prompts_per_step=8", "rollout.samples_per_prompt=4", "rollout.sampling.max_response_tokens=64"]
    return compose(["+model=glm4-tiny", "+cluster=local-pd", *few])


@pytest.fixture(scope="module")
def engines(cfg, tmp_path_factory) -> Iterator[list[EngineProcess]]:
    logs, topology = tmp_path_factory.mktemp("pair"), read_topology(cfg)
    where = {"host": LOOPBACK, "key": new_key()}
    engines = [server(topology, index, log=logs / f"{index}.log", **where) for index in range(2)]
    with started(engines):
        yield engines


@pytest.fixture(scope="module")
def weights(hf_model, tiny_model):
    return dict(hf_tensors(hf_model(tiny_model)))


def use(cfg: SlimeConfig, engines: list[EngineProcess], work: Callable[..., Awaitable[Any]]) -> Any:
    """`await work(pairs, client of prefill, client of decode)`."""

    async def main() -> Any:
        async with AsyncExitStack() as stack:
            clients = [SGLangClient(engine.endpoint) for engine in engines]
            for client in clients:
                stack.push_async_callback(client.close)
            await require_room(clients, cfg)
            return await work(await Pairs.of((engine.engine.role for engine in engines), clients), *clients)

    return asyncio.run(main())


def test_an_interrupted_response_goes_on_as_if_it_had_not_been(cfg, engines, weights):
    """By aborts that find requests in every state, with weights published to both after each."""

    def steps(*versions: int, **rollout: Any) -> list[Any]:
        changed = SlimeConfig(**vars(cfg) | {"rollout": type(cfg.rollout)(**vars(cfg.rollout) | rollout)})
        with RewardService(cfg.reward) as rewards:
            return Bench(changed, weights, engines, rewards).collect(*versions)

    whole = {response[:2]: response[2] for response in responses(steps(1, prompts_per_step=8))}
    parts = steps(1, 2, 3, prompts_per_step=2, over_sampling=2.0, max_requests_per_engine=12)
    assert {sample[:2]: sample[2] for sample in responses(parts)}.items() <= whole.items()
    assert sum(step.stats["rollout/continued_samples"] for step in parts) > 0


def test_both_roles_hold_what_was_published_and_say_so(cfg, engines, weights):
    receipt = publish(iter(weights.items()), [engine.endpoint for engine in engines], 7, 1 << 24)
    assert receipt.engines == tuple(engine.endpoint.url for engine in engines)

    async def ask(pairs: Pairs, prefill: SGLangClient, decode: SGLangClient) -> Any:
        stop = await pairs.generate([5, 6, 7], {"max_new_tokens": 400, "stop_token_ids": list(range(64))})
        return await pairs.generate([5, 6, 7], {"max_new_tokens": 1, "ignore_eos": True}), stop

    one, stopped = use(cfg, engines, ask)
    assert (len(one.tokens), len(one.logprobs), one.finish_reason, one.weight_version) == (1, 1, FinishReason.LENGTH, 7)
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.tokens[-1] < 64
    assert len(stopped.logprobs) == len(stopped.tokens), "the first token's, too, which prefill drew"


def test_what_listens_to_other_hosts_is_what_the_guide_warns_of(engines):
    """Two ports of mooncake an engine, which cannot be told where to listen."""
    for engine in engines:
        listening = [
            connection.laddr.ip
            for process in psutil.process_iter()
            if belongs(process, engine.pid)
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert sorted(set(listening)) == ["0.0.0.0", LOOPBACK, "::"]
        assert listening.count(LOOPBACK) == len(listening) - 2


def belongs(process: psutil.Process, leader: int) -> bool:
    try:
        return os.getpgid(process.pid) == leader
    except ProcessLookupError:
        return False


def test_the_death_of_decode_is_named_and_prefill_is_free_again(cfg, engines, weights):
    """The last of this file: it takes an engine."""
    publish(iter(weights.items()), [engine.endpoint for engine in engines], 8, 1 << 24)

    async def kill(pairs: Pairs, prefill: SGLangClient, decode: SGLangClient) -> tuple[list[Any], tuple[int, int]]:
        running = [asyncio.create_task(pairs.generate([5, number], LONG)) for number in range(40)]
        while (await decode.load())[1] < 40:  # some decode, others wait for room
            assert not [task for task in running if task.done()], "none can have ended yet"
            await asyncio.sleep(0.05)
        os.killpg(engines[1].pid, signal.SIGKILL)
        ends = await asyncio.gather(*running, return_exceptions=True)
        while (load := await prefill.load())[0]:
            await asyncio.sleep(0.1)
        return ends, load

    patience = Patience(20, lambda: family(os.getpid()))
    ends, _ = use(cfg, engines, kill)
    assert not patience.is_over()
    others = [end for end in ends if not isinstance(end, SlimeError) or engines[1].endpoint.url not in end.where]
    assert not others, [repr(end)[:600] for end in others]
    assert "was killed by SIGKILL" in engines[1].end(waits=True).error.what
