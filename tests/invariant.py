"""Log-probs of what a real engine sampled, against those of one trainer rank for the same tokens, and their seconds.

Prompts of several lengths are asked for at once, so that they are decoded in batches whose size changes; then each
answer is continued, behind keys and values that the engine still has. The trainer scores all of it, packed.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from slime.config.schema import SlimeConfig
from slime.net import Endpoint
from slime.types import ADVANTAGES, ROLLOUT_LOGPROBS, TrainSample
from slime_sglang.engine.driver.client import SGLangClient
from slime_testing.ranks import Rank

NUM_MEASURED = 3


class Sizes(NamedTuple):
    """Requests, the lengths that their prompts take turns in, and tokens of an answer, of which there are two."""

    requests: int
    prompts: tuple[int, ...]
    answer: int


class Row(NamedTuple):
    """What was found of sampled tokens: absolute differences in nats, the share that is not equal to the bit; seconds
    of generation, and medians of scoring and of a forward and backward pass."""

    num_tokens: int
    mean: float
    largest: float
    unequal: float
    generation: float
    scoring: float
    training: float


def measured(rank: Rank, cfg: SlimeConfig, engine: Endpoint, sizes: Sizes, num_measured: int) -> tuple[float, ...]:
    """Fields of a `Row`. Runs in a rank of its own: the trainer's part. A first pass of each, which compiles kernels,
    is not counted."""
    from megatron_core_portable import cpu_stands_in_for_cuda
    from slime.algo.sft import Sft
    from slime.train.packing import pack
    from slime_megatron.train.local_batch import local_micro_batches
    from slime_megatron.train.objective import StepLoss
    from slime_megatron.train.step import GradientCheck, accumulate_gradients, score
    from slime_megatron.train.trainer import Trainer
    from slime_testing.publishing import publish
    from weight_buckets.bucket import CudaBucket, SharedBucket

    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    kind = partial(CudaBucket if cfg.cluster.on_gpus else SharedBucket, device=trainer.device)
    publish(trainer.export(), [engine], 1, 64 << 20, bucket_type=kind)
    generator, vocabulary = np.random.default_rng(0), trainer.hf["vocab_size"]
    lengths = [sizes.prompts[number % len(sizes.prompts)] for number in range(sizes.requests)]
    prompts = [generator.integers(1, vocabulary, length).tolist() for length in lengths]
    asyncio.run(_sampled(engine, [prompt[::-1] for prompt in prompts], 4))
    samples, seconds = asyncio.run(_sampled(engine, prompts, sizes.answer))
    packing = {"align": trainer.packing_align, "max_tokens": 16384, "loss_mean": cfg.algo.loss_mean}
    [batch] = pack(samples, num_dp=1, **packing)
    GradientCheck(trainer.model)
    with cpu_stands_in_for_cuda():
        micro_batches = local_micro_batches(batch, trainer.device)

        def train() -> None:
            accumulate_gradients(trainer.model, micro_batches, StepLoss(Sft(), micro_batches, {}, is_first=True))

        scoring, scores = _timed(lambda: [*score(trainer.model, micro_batches)], num_measured)
        training, _ = _timed(train, num_measured)
    gaps = [
        (found[0] - micro.columns[ROLLOUT_LOGPROBS])[micro.loss_mask > 0].float().abs()
        for found, micro in zip(scores, micro_batches, strict=True)
    ]
    gap = torch.cat(gaps).cpu()
    return len(gap), float(gap.mean()), float(gap.max()), float((gap > 0).float().mean()), seconds, scoring, training


async def _sampled(engine: Endpoint, prompts: Sequence[list[int]], answer: int) -> tuple[list[TrainSample], float]:
    """Of each prompt an answer and its continuation, and the seconds that they took."""
    client, start = SGLangClient(engine), time.perf_counter()
    sampling = {"max_new_tokens": answer, "ignore_eos": True}
    try:
        first = await asyncio.gather(*(client.generate(prompt, sampling) for prompt in prompts))
        longer = [[*prompt, *each.tokens] for prompt, each in zip(prompts, first, strict=True)]
        second = await asyncio.gather(*(client.generate(prompt, sampling) for prompt in longer))
    finally:
        await client.close()
    seconds, samples = time.perf_counter() - start, []
    for tokens, *answers in zip(longer, first, second, strict=True):
        logprobs = np.array([value for each in answers for value in each.logprobs], np.float32)
        columns = {ADVANTAGES: np.ones_like(logprobs), ROLLOUT_LOGPROBS: logprobs}
        whole = np.array([*tokens, *answers[-1].tokens])
        samples.append(TrainSample(tokens=whole, loss_mask=np.ones_like(logprobs), columns=columns))
    return samples, seconds


def _timed(function: Callable[[], Any], num_measured: int) -> tuple[float, Any]:
    """Median seconds after a first call, and what the last call returned."""
    seconds = []
    for _ in range(1 + num_measured):
        start = time.perf_counter()
        found = function()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:]), found
