"""Tokens a second of a rollout, divided by those of the same load sent straight to SGLang.

    python benchmarks/rollout.py                   # tiny model on this machine's CPU, five rounds of 256 requests
    python benchmarks/rollout.py --turns 5         # conversations of five turns
    python benchmarks/rollout.py --lengths 512 1 16384 --prompts 64 +model=qwen2.5-coder-0.5b +cluster=h200x1

The loop does all that a run does with a response: checks, log-probs, text, reward in a worker process, filter,
statistics. The other side posts the same requests with bare aiohttp, one by one, at the same concurrency, and drops the
answers; of a conversation each as soon as the one before it is answered, with the answer in it. Samples of a prompt go
to one engine, prompts to one engine after the other.

Weights are random, so that answers seldom end by themselves. With `--lengths MEDIAN SIGMA MOST` each may have a number
of tokens of its own, drawn log-normal. The other side asks for as many tokens as the loop was given. Both alternate on
the same engines, which forget all prefixes before each round, and each round of the loop is compared with the mean of
the straight rounds before and after it, so that a drifting machine favours neither. The project promises 0.95, and
0.90 of five turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import torch

from slime.builtins import KeepAll, Single
from slime.compose.compose import compose
from slime.config.paths import resolve
from slime.config.schema import SamplingConfig, SlimeConfig
from slime.contracts import Program, Responder
from slime.data.prompts import PromptSource
from slime.data.tokenize import load_tokenizer
from slime.engine_client.client import Completion
from slime.engine_client.engine_set import EngineSet
from slime.imports import collect_rarely
from slime.net import LOOPBACK, Endpoint
from slime.reward.service import RewardService
from slime.sampling.buffer import FifoBuffer
from slime.sampling.loop import Rollout
from slime.sampling.sampler import Sampler
from slime.time_limit import often
from slime.topology.topology import read_topology
from slime.types import Task
from slime_agents.conversations.conversation import Conversations
from slime_sglang.engine.driver.client import SGLangClient
from slime_sglang.engine.driver.process import EngineProcess
from slime_testing.models import write_checkpoint
from slime_testing.publishing import publish

PROMISED, OF_TURNS = 0.95, 0.90
VERSION = 1
BESIDE = 64
"""Tokens at most that the template writes between two answers."""
ASKED = {"role": "user", "content": "And then?"}
Body = Mapping[str, Any]


@dataclass
class Conversation:
    """What an attempt has asked, and the tokens that answered: one request and answer a turn."""

    requests: list[Body] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)

    def written(self, turn: int) -> list[int]:
        """Tokens that stand between the answer before and this turn; of the first turn, all that stand before it."""
        asked: list[int] = self.requests[turn]["input_ids"]
        return asked[len(self.requests[turn - 1]["input_ids"]) + len(self.answers[turn - 1]) :] if turn else asked


_asking: ContextVar[Conversation] = ContextVar("the conversation of the attempt that asks")


class RecordingClient(SGLangClient):
    """Keeps what was asked, so that exactly the same can be asked again."""

    async def generate(self, input_ids: Sequence[int], sampling: Mapping[str, Any], /, **fields: Any) -> Completion:
        conversation = _asking.get()
        conversation.requests.append({"input_ids": list(input_ids), "sampling_params": dict(sampling)})
        completion = await super().generate(input_ids, sampling, **fields)
        conversation.answers.append(completion.tokens)
        return completion


class Recorded:
    """A program of `turns` turns, whose answers have at most the next of `limits` tokens; none: as the run says."""

    in_driver = True

    def __init__(self, turns: int, limits: random.Random | None, lengths: Sequence[float]) -> None:
        self._turns, self._limits, self._lengths = turns, limits, lengths
        self._single: Program = Single()
        self.conversations: list[Conversation] = []

    async def run(self, task: Task, model: Responder) -> None:
        _asking.set(conversation := Conversation())
        self.conversations.append(conversation)
        if self._turns == 1 and not self._limits:
            await self._single.run(task, model)
            return
        talk = model.conversation()
        for turn in range(self._turns):
            await talk.turn(*([ASKED] if turn else []), max_tokens=self._limit())

    def _limit(self) -> int | None:
        if not self._limits:
            return int(self._lengths[0])
        median, sigma, most = self._lengths
        return min(int(most), max(1, round(self._limits.lognormvariate(math.log(median), sigma))))


async def through_the_loop(rollout: Rollout) -> tuple[float, int]:
    """Seconds and tokens of one collected step."""
    start = time.perf_counter()
    collected = await rollout.collect(VERSION)
    return time.perf_counter() - start, round(collected.stats["rollout/num_tokens"])


async def straight(engines: Sequence[Endpoint], load: Sequence[Conversation], samples: int, at_once: int) -> float:
    """Seconds of the same conversations, as many at once on each engine."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(None)) as session:

        async def send(engine: Endpoint, waiting: Any) -> None:
            for conversation in waiting:
                ids: list[int] = []
                for turn, request in enumerate(conversation.requests):
                    ids += conversation.written(turn)
                    length = len(conversation.answers[turn])
                    sampling = request["sampling_params"] | {"max_new_tokens": length, "ignore_eos": True}
                    body = {"input_ids": ids, "sampling_params": sampling | {"stop": []}, "return_logprob": True}
                    async with session.post(f"{engine}/generate", json=body, headers=engine.headers) as response:
                        meta = (await response.json())["meta_info"]
                    assert meta["completion_tokens"] == length, "the load is the same"
                    ids += [token for _, token, *_ in meta["output_token_logprobs"]]

        shares = [iter([c for n, c in enumerate(load) if n // samples % len(engines) == number])
                  for number in range(len(engines))]  # fmt: skip
        start = time.perf_counter()
        await asyncio.gather(*(send(*each) for each in zip(engines, shares, strict=True) for _ in range(at_once)))
        return time.perf_counter() - start


async def measure(
    cfg: SlimeConfig, engines: Sequence[Endpoint], rewards: RewardService, program: Recorded, rounds: int
) -> list[tuple[float, float]]:
    """Tokens a second of each round, (through the loop, straight); a first one warms both up and only begins the
    comparison."""
    tokenizer = load_tokenizer(resolve(cfg.model.path))
    clients = [RecordingClient(engine) for engine in engines]
    chat = Conversations(tokenizer, cfg.data, cfg.rollout.max_prompt_tokens)
    sampler = Sampler(cfg.rollout, cfg.reward, cfg.run.seed, EngineSet(clients), tokenizer, program, rewards, chat=chat)
    rollout = Rollout(
        cfg.rollout,
        sampler,
        prompts=PromptSource(cfg.data, tokenizer, cfg.run.seed, cfg.rollout.max_prompt_tokens),
        buffer=FifoBuffer(),
        sample_filter=KeepAll(),
    )
    ours, theirs = [], []
    collect_rarely()  # as a run does
    try:
        for _ in range(rounds + 1):
            program.conversations.clear()
            with often():  # as well
                seconds, tokens = await through_the_loop(rollout)
            ours.append(tokens / seconds)
            await asyncio.gather(*(client.flush_cache() for client in clients))
            load = program.conversations
            seconds = await straight(engines, load, cfg.rollout.samples_per_prompt, cfg.rollout.max_requests_per_engine)
            theirs.append(sum(len(answer) for each in load for answer in each.answers) / seconds)
            await asyncio.gather(*(client.flush_cache() for client in clients))
    finally:
        await asyncio.gather(*(client.close() for client in clients))
    around = [(before + after) / 2 for before, after in pairwise(theirs)]
    return list(zip(ours[1:], around, strict=True))


def publish_random_weights(cfg: SlimeConfig, engines: Sequence[Endpoint], folder: Path) -> None:
    """Weights with which answers differ and seldom end early."""
    from safetensors.torch import load_file

    dtype = torch.bfloat16 if cfg.cluster.device == "cuda" else torch.float32
    write_checkpoint(json.loads((resolve(cfg.model.path) / "config.json").read_text()), folder, dtype=dtype)
    publish(iter(load_file(folder / "model.safetensors").items()), engines, VERSION, cfg.weights.bucket_mb << 20)


def table(cfg: SlimeConfig, pairs: Sequence[tuple[float, float]], options: argparse.Namespace) -> str:
    ratios = [ours / theirs for ours, theirs in pairs]
    rows = [f"| {n} | {ours:.0f} | {theirs:.0f} | {ours / theirs:.3f} |" for n, (ours, theirs) in enumerate(pairs, 1)]
    rollout, ratio, promised = cfg.rollout, statistics.median(ratios), PROMISED if options.turns == 1 else OF_TURNS
    median, sigma, most = options.lengths or (options.response_tokens, 0, options.response_tokens)
    drawn = f" (median {median:.0f}, sigma {sigma:g})" if sigma else ""
    device = torch.cuda.get_device_name() if cfg.cluster.device == "cuda" else platform.machine()
    conditions = (
        f"{cfg.model.name}, {rollout.prompts_per_step} prompts x {rollout.samples_per_prompt} samples, {options.turns} "
        f"turn{'s' * (options.turns > 1)} of at most {most:.0f} tokens{drawn}, "
        f"{rollout.max_requests_per_engine} at once, reward {cfg.reward.name}; {options.engines} "
        f"engine{'s' * (options.engines > 1)}, {os.cpu_count()} CPU cores, {device}, torch {torch.__version__}"
    )
    verdict = f"median ratio {ratio:.3f}, promised {promised}: {'kept' if ratio >= promised else 'MISSED'}"
    head = ["| round | loop, tokens/s | straight, tokens/s | ratio |", "|---|---|---|---|"]
    return "\n".join([conditions, "", *head, *rows, "", verdict])


def composed(options: argparse.Namespace) -> SlimeConfig:
    """The recipe with this load."""
    cfg = compose(options.words or ["+model=glm4-tiny", "+cluster=local"])
    most = round(options.lengths[2]) if options.lengths else options.response_tokens
    longest = most if options.turns == 1 else options.turns * (most + BESIDE)
    cfg.rollout = replace(
        cfg.rollout,
        prompts_per_step=options.prompts,
        samples_per_prompt=options.samples,
        sampling=SamplingConfig(max_response_tokens=longest),
    )
    return cfg


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--response-tokens", type=int, default=32)
    parser.add_argument("--lengths", type=float, nargs=3, metavar=("MEDIAN", "SIGMA", "MOST"))
    options, words = parser.parse_known_args()
    options.words = words
    cfg = composed(options)
    program = Recorded(
        options.turns, random.Random(7) if options.lengths else None, options.lengths or [options.response_tokens]
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        processes = [
            EngineProcess(read_topology(cfg), host=LOOPBACK, log=folder / f"engine{number}.log")
            for number in range(options.engines)
        ]
        for process in processes:
            stack.callback(process.stop)
        engines = [process.start() for process in processes]
        publish_random_weights(cfg, engines, folder)
        rewards = stack.enter_context(RewardService(cfg.reward))
        print(table(cfg, asyncio.run(measure(cfg, engines, rewards, program, options.rounds)), options))


if __name__ == "__main__":
    main()
