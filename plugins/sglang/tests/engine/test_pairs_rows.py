"""Experts that a pair of SGLang's engines tells of, over mooncake's TCP: those that one engine tells of."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest

from slime.compose.compose import compose
from slime.config.hf import read_hf_config
from slime.config.schema import SlimeConfig
from slime.engine_client.client import Completion, Engine, FinishReason
from slime.net import LOOPBACK, new_key
from slime.topology.recordings import recordings_of
from slime.topology.topology import read_topology
from slime_sglang.engine.driver.client import SGLangClient
from slime_sglang.engine.driver.pairs import Pairs
from slime_sglang.engine.driver.process import EngineProcess
from slime_sglang.engine.frames import ROWS
from slime_testing import models
from slime_testing.engines import as_exported, server, started
from slime_testing.publishing import publish

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("_mooncake")]
PROMPT = list(range(20, 60))
ASKED = {"return_routed_experts": True}
NO_END = {"temperature": 0.0, "ignore_eos": True}
# With deterministic inference, engines on a CPU have no prefix cache.
SETTINGS = [
    "+model=glm4-moe-tiny",
    "train.routing_replay=true",
    "rollout.sglang.enable_deterministic_inference=false",
    "rollout.max_prompt_tokens=64",
    "rollout.sampling.max_response_tokens=128",
]
# Prompts come in chunks, and the decode engine has no room for eight responses.
SMALL = [
    "+rollout.engines.prefill.sglang.chunked_prefill_size=16",
    "+rollout.engines.decode.sglang.max_total_tokens=500",
    "+rollout.engines.decode.sglang.num_reserved_decode_tokens=8",
]


@pytest.fixture(scope="module")
def cfg() -> SlimeConfig:
    return compose([*SETTINGS, "+cluster=local-pd", *SMALL])


@pytest.fixture(scope="module")
def engines(cfg: SlimeConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EngineProcess]]:
    """A prefill engine, a decode engine, and one that does both."""
    logs, one, pair = tmp_path_factory.mktemp("rows"), compose([*SETTINGS, "+cluster=local"]), read_topology(cfg)
    where = {"host": LOOPBACK, "key": new_key()}
    engines = [server(pair, index, log=logs / f"{index}.log", **where) for index in range(2)]
    engines.append(server(read_topology(one), log=logs / "one.log", **where))
    weights = as_exported(models.random_model(read_hf_config(cfg.model.path), seed=3), cfg.model.path)
    with started(engines):
        publish(iter(weights.items()), [engine.endpoint for engine in engines], 1, 1 << 20)
        yield engines


@pytest.fixture
def both(engines: list[EngineProcess]) -> Iterator[Any]:
    """From what is asked of an engine to the answers of the pair and of the other one."""

    def ask(work: Any) -> Any:
        async def main() -> Any:
            async with AsyncExitStack() as stack:
                clients = [SGLangClient(engine.endpoint) for engine in engines]
                for client in clients:
                    stack.push_async_callback(client.close)
                *pair, one = clients
                pairs = await Pairs.of((engine.engine.role for engine in engines[:2]), pair)
                return await work(pairs), await work(one)

        return asyncio.run(main())

    return ask


def rows(cfg: SlimeConfig, prompt: Sequence[int], answer: Completion) -> np.ndarray:
    """[tokens but the last, layers, experts], each of which can be replayed."""
    [recording] = recordings_of(cfg)
    read = recording.read(answer.meta, [*prompt, *answer.tokens])
    assert read is not None
    assert read.data == answer.meta[ROWS], "none counts as missing"
    return np.frombuffer(read.data, read.dtype).reshape(read.shape)


def require_same(cfg: SlimeConfig, prompt: Sequence[int], pair: Completion, one: Completion) -> None:
    assert pair.tokens == one.tokens
    assert np.array_equal(rows(cfg, prompt, pair), rows(cfg, prompt, one))
    assert len(np.unique(rows(cfg, prompt, one))) > 4, "tokens differ in their experts"


async def asked(engine: Engine, prompt: Sequence[int], num_tokens: int) -> Completion:
    return await engine.generate(prompt, {**NO_END, "max_new_tokens": num_tokens}, **ASKED)


@pytest.mark.parametrize("num_tokens", [1, 2, 30])
def test_rows_of_prompt_and_response_are_those_of_one_engine(cfg: SlimeConfig, both: Any, num_tokens: int) -> None:
    prompt = [num_tokens, *PROMPT]
    require_same(cfg, prompt, *both(lambda engine: asked(engine, prompt, num_tokens)))


def test_a_prompt_in_the_cache_of_the_prefill_engine_has_its_rows(cfg: SlimeConfig, both: Any) -> None:
    async def again(engine: Engine) -> Completion:
        await asked(engine, [7, *PROMPT], 3)
        return await asked(engine, [7, *PROMPT, 12, 13], 9)

    pair, one = both(again)
    assert pair.meta["cached_tokens"] == one.meta["cached_tokens"] == 1 + len(PROMPT)
    require_same(cfg, [7, *PROMPT, 12, 13], pair, one)


def test_a_continued_response_has_the_rows_of_all_before_it(cfg: SlimeConfig, both: Any) -> None:
    prompt = [8, *PROMPT[:10]]

    async def interrupted(engine: Engine) -> tuple[Completion, Completion]:
        wait_s = 0.1
        while True:
            wait_s *= 1.5
            asking = asyncio.create_task(asked(engine, prompt, 110))
            await asyncio.sleep(wait_s)
            await engine.abort_all()
            if (first := await asking).tokens:
                break
        assert first.finish_reason is FinishReason.ABORT
        return first, await asked(engine, [*prompt, *first.tokens], 5)

    (pair, rest), (one, _) = both(interrupted)
    shared = min(len(pair.tokens), len(one.tokens))
    assert pair.tokens[:shared] == one.tokens[:shared]
    upto = len(prompt) + shared - 1
    assert np.array_equal(rows(cfg, prompt, pair)[:upto], rows(cfg, prompt, one)[:upto])
    everything = [*prompt, *pair.tokens]
    _, wanted = both(lambda engine: asked(engine, everything, 5))
    require_same(cfg, everything, rest, wanted)


def test_a_request_that_decode_moved_out_of_its_pool_keeps_its_rows(cfg: SlimeConfig, both: Any) -> None:
    prompts = [[number, *PROMPT[:20]] for number in range(10, 18)]

    async def together(engine: Engine) -> list[Completion]:
        return await asyncio.gather(*(asked(engine, prompt, 100) for prompt in prompts))

    of_pair, of_one = both(together)
    assert sum(answer.meta["num_retractions"] for answer in of_pair) > 0
    for prompt, pair, one in zip(prompts, of_pair, of_one, strict=True):
        require_same(cfg, prompt, pair, one)
