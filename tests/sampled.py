"""What a real engine samples for a comparison with the trainer, and from which prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from slime.engine_client.client import Completion
from slime.models.bridge import HfConfig
from slime.models.traits import Recording
from slime.net import Endpoint
from slime.types import ADVANTAGES, ROLLOUT_LOGPROBS, TrainSample
from slime_sglang.engine.driver.client import SGLangClient

PROMPT_LENGTHS, NUM_TOKENS = (7, 64, 300, 1000), 64
LONG_PROMPT_LENGTHS = (2000, 5000)
"""With `NUM_TOKENS` more, the first passes an `index_topk` of 2048 while it is decoded, the second while prefilled."""
WITHIN, BEYOND = "", "beyond index_topk"
VERSION = 2
"""Of the weights that are compared."""


def prompts_of(hf: HfConfig) -> dict[str, list[list[int]]]:
    """Random tokens, of sequences that attend to all keys, and of those that are too long for it."""
    lengths = {WITHIN: PROMPT_LENGTHS} | ({BEYOND: LONG_PROMPT_LENGTHS} if "index_topk" in hf else {})
    generator, longest = np.random.default_rng(0), hf["max_position_embeddings"] - NUM_TOKENS
    return {
        kind: [generator.integers(1, hf["vocab_size"], length).tolist() for length in of_kind if length <= longest]
        for kind, of_kind in lengths.items()
    }


async def sample(
    engine: Endpoint, prompts: Sequence[list[int]], recordings: Sequence[Recording], version: int = VERSION
) -> list[TrainSample]:
    client = SGLangClient(engine)
    fields = {name: value for each in recordings for name, value in each.request_fields.items()}
    sampling = {"max_new_tokens": NUM_TOKENS, "ignore_eos": True}
    try:
        answers = await asyncio.gather(*(client.generate(prompt, sampling, **fields) for prompt in prompts))
    finally:
        await client.close()
    assert {answer.weight_version for answer in answers} == {version}
    return [_train_sample(prompt, answer, recordings) for prompt, answer in zip(prompts, answers, strict=True)]


def _train_sample(prompt: list[int], answer: Completion, recordings: Sequence[Recording]) -> TrainSample:
    assert len(answer.tokens) == NUM_TOKENS
    tokens = [*prompt, *answer.tokens]
    rows = {each.name: told for each in recordings if (told := each.read(answer.meta, tokens))}
    assert len(rows) == len(recordings), "an answer says what the engine noted"
    return TrainSample(
        tokens=np.array(tokens),
        recorded={name: np.frombuffer(told.data, told.dtype).reshape(told.shape) for name, told in rows.items()},
        loss_mask=np.ones(NUM_TOKENS, np.float32),
        columns={
            ADVANTAGES: np.ones(NUM_TOKENS, np.float32),
            ROLLOUT_LOGPROBS: np.array(answer.logprobs, np.float32),
        },
    )
