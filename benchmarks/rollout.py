"""Tokens a second through slime's sampling loop, divided by those of the same requests sent straight to SGLang.

    python benchmarks/rollout.py                   # tiny model on this machine's CPU, five rounds of 256 requests
    python benchmarks/rollout.py --rounds 3 --prompts 64 --samples 8 --response-tokens 64

The loop does all that a run does with a response: checks, log-probs, text, reward in a worker process, filter,
statistics. The other side posts the same requests with bare aiohttp, one by one, at the same concurrency, and drops the
answers. Both alternate on one engine, and each round of the loop is compared with the mean of the straight rounds
before and after it, so that a drifting machine favours neither. The project promises 0.95.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import torch

from slime.builtins import KeepAll, Single
from slime.compose.compose import compose
from slime.config.paths import resolve
from slime.config.schema import SamplingConfig, SlimeConfig
from slime.data.prompts import PromptSource
from slime.data.tokenize import load_tokenizer
from slime.engine_client.client import Completion
from slime.engine_client.engine_set import EngineSet
from slime.net import LOOPBACK, Endpoint
from slime.reward.service import RewardService
from slime.sampling.buffer import FifoBuffer
from slime.sampling.loop import Rollout
from slime.sampling.sampler import Sampler
from slime.topology.topology import read_topology
from slime_sglang.engine.driver.client import SGLangClient
from slime_sglang.engine.driver.process import EngineProcess
from slime_testing.models import write_checkpoint
from slime_testing.publishing import publish

PROMISED = 0.95
VERSION = 1
Body = Mapping[str, Any]


class RecordingClient(SGLangClient):
    """Keeps what was asked, so that exactly the same can be asked again."""

    def __init__(self, engine: Endpoint) -> None:
        super().__init__(engine)
        self.bodies: list[Body] = []

    async def generate(self, input_ids: Sequence[int], sampling: Mapping[str, Any]) -> Completion:
        self.bodies.append({"input_ids": list(input_ids), "sampling_params": dict(sampling), "return_logprob": True})
        return await super().generate(input_ids, sampling)


async def through_the_loop(rollout: Rollout) -> float:
    """Tokens a second of one collected step."""
    start = time.perf_counter()
    collected = await rollout.collect(VERSION)
    return collected.stats["rollout/num_tokens"] / (time.perf_counter() - start)


async def straight(engine: Endpoint, bodies: Sequence[Body], concurrency: int) -> float:
    """Tokens a second of the same requests, as many at once."""
    waiting, num_tokens = iter(bodies), 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=engine.headers) as session:

        async def sender() -> None:
            nonlocal num_tokens
            for body in waiting:
                async with session.post(f"{engine}/generate", json=body) as response:
                    num_tokens += (await response.json())["meta_info"]["completion_tokens"]

        start = time.perf_counter()
        await asyncio.gather(*(sender() for _ in range(concurrency)))
        return num_tokens / (time.perf_counter() - start)


async def measure(cfg: SlimeConfig, engine: Endpoint, rewards: RewardService, rounds: int) -> list[tuple[float, float]]:
    """(through the loop, straight) of each round; a first round warms both up and only begins the comparison."""
    tokenizer = load_tokenizer(resolve(cfg.model.path))
    client = RecordingClient(engine)
    sampler = Sampler(cfg.rollout, cfg.reward, cfg.run.seed, EngineSet([client]), tokenizer, Single(), rewards)
    rollout = Rollout(
        cfg.rollout,
        sampler,
        prompts=PromptSource(cfg.data, tokenizer, cfg.run.seed, cfg.rollout.max_prompt_tokens),
        buffer=FifoBuffer(),
        sample_filter=KeepAll(),
    )
    ours, theirs = [], []
    try:
        for _ in range(rounds + 1):
            client.bodies.clear()
            ours.append(await through_the_loop(rollout))
            theirs.append(await straight(engine, client.bodies, cfg.rollout.max_requests_per_engine))
    finally:
        await client.close()
    around = [(before + after) / 2 for before, after in pairwise(theirs)]
    return list(zip(ours[1:], around, strict=True))


def publish_random_weights(cfg: SlimeConfig, engine: Endpoint, folder: Path) -> None:
    """Weights with which responses differ and seldom end early."""
    from safetensors.torch import load_file

    write_checkpoint(json.loads((resolve(cfg.model.path) / "config.json").read_text()), folder)
    publish(iter(load_file(folder / "model.safetensors").items()), [engine], VERSION, cfg.weights.bucket_mb << 20)


def table(cfg: SlimeConfig, pairs: Sequence[tuple[float, float]]) -> str:
    ratios = [ours / theirs for ours, theirs in pairs]
    rows = [f"| {n} | {ours:.0f} | {theirs:.0f} | {ours / theirs:.3f} |" for n, (ours, theirs) in enumerate(pairs, 1)]
    rollout, ratio = cfg.rollout, statistics.median(ratios)
    conditions = (
        f"{cfg.model.name}, {rollout.prompts_per_step} prompts x {rollout.samples_per_prompt} samples of at most "
        f"{rollout.sampling.max_response_tokens} tokens, {rollout.max_requests_per_engine} at once, reward "
        f"{cfg.reward.name}; one engine, {os.cpu_count()} CPU cores ({platform.machine()}), torch {torch.__version__}"
    )
    verdict = f"median ratio {ratio:.3f}, promised {PROMISED}: {'kept' if ratio >= PROMISED else 'MISSED'}"
    head = ["| round | loop, tokens/s | straight, tokens/s | ratio |", "|---|---|---|---|"]
    return "\n".join([conditions, "", *head, *rows, "", verdict])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--response-tokens", type=int, default=32)
    options = parser.parse_args()
    cfg = compose(["+model=glm4-tiny", "+cluster=local"])
    cfg.rollout = replace(
        cfg.rollout,
        prompts_per_step=options.prompts,
        samples_per_prompt=options.samples,
        sampling=SamplingConfig(max_response_tokens=options.response_tokens),
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        process = EngineProcess(read_topology(cfg), host=LOOPBACK, log=folder / "engine.log")
        stack.callback(process.stop)
        engine = process.start()
        publish_random_weights(cfg, engine, folder)
        rewards = stack.enter_context(RewardService(cfg.reward))
        print(table(cfg, asyncio.run(measure(cfg, engine, rewards, options.rounds))))


if __name__ == "__main__":
    main()
