"""Routing replay from an engine to the trainer: the experts that a real engine tells of are those that transformers'
routers choose with its weights, and the trainer computes with them although its own routers are others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slime.config.hf import read_hf_config
from slime.config.paths import resolve
from slime.config.schema import SamplingConfig
from slime.data.tokenize import load_tokenizer
from slime.engine_client.engine_set import EngineSet
from slime.errors import SlimeError
from slime.net import Endpoint
from slime.sampling.generate import Generator
from slime.segments import Segment
from slime.types import Status, TrainSample
from slime_megatron.mixture_of_experts.replay import ROUTED_EXPERTS
from slime_sglang.engine.driver.client import SGLangClient
from slime_testing import models
from slime_testing.engines import as_exported, running_engine
from slime_testing.publishing import publish
from slime_testing.ranks import run_ranks

from .replayed import TOLERANCE, by_transformers, chosen_by, largest_difference, recording_of, scored

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
MODELS = {
    "sigmoid": "pkg://slime_plugin_glm4/assets/glm4-moe-tiny",
    "softmax": "pkg://slime_plugin_qwen3/assets/qwen3-moe-tiny",
    "latent": "pkg://slime_plugin_deepseek_v3/assets/deepseek-v3-tiny",
}
PROMPT = tuple(range(20, 43))


async def generated(engine: Endpoint, folder: str) -> list[Segment]:
    """Samples of one prompt, of which two come at once and a third finds it in the cache; a conversation of two turns;
    and a response that was aborted and then continued."""
    client = SGLangClient(engine)
    sampling = SamplingConfig(max_response_tokens=200)
    tokenizer = load_tokenizer(resolve(folder))
    generator = Generator(EngineSet([client]), sampling, tokenizer, recordings=[recording_of(resolve(folder))])
    try:
        segments = [Segment(PROMPT) for _ in range(3)] + [Segment((*PROMPT, 50, 51))]
        cached, *others = segments
        await asyncio.gather(*(generator.continue_response(one, 0, 30, 1, seed=2 + n) for n, one in enumerate(others)))
        await generator.continue_response(cached, 0, 20, 1, seed=1)
        turns = segments[1]
        turns.write([60, 61, 62])
        begun = len(turns.tokens)
        await generator.continue_response(turns, begun, begun + 15, 1, seed=9)
        broken_off = Segment((*PROMPT, 70))
        begins_within_s = 0.15
        while not broken_off.tokens:
            begins_within_s *= 2
            asking = asyncio.create_task(generator.continue_response(broken_off, 0, 150, 1, seed=11))
            await asyncio.sleep(begins_within_s)
            await client.abort_all()
            _, status = await asking
        if status is Status.ABORTED:
            rows = broken_off.recorded[ROUTED_EXPERTS].shape[0]
            assert rows == len(broken_off.context) + len(broken_off.tokens) - 1, "of what it had"
            await generator.continue_response(broken_off, 0, len(broken_off.tokens) + 10, 1, seed=11)
        too_long = [client.generate([5] * 20_000, {"max_new_tokens": 1}, return_routed_experts=True) for _ in range(3)]
        for error in [*await asyncio.gather(*too_long[1:], return_exceptions=True), await refused(too_long[0])]:
            assert isinstance(error, SlimeError)
            assert "longer than the model's context length" in str(error)
        return [*segments, broken_off]
    finally:
        await client.close()


async def refused(asking: Awaitable[Any]) -> BaseException | Any:
    [result] = await asyncio.gather(asking, return_exceptions=True)
    return result


@pytest.mark.parametrize("name", MODELS)
def test_the_experts_of_an_engine_are_replayed(name: str, tmp_path: Path) -> None:
    folder = MODELS[name]
    hf, checkpoint = read_hf_config(folder), tmp_path / "checkpoint"
    models.write_checkpoint(hf, checkpoint, seed=3)
    recording = recording_of(checkpoint)
    other = models.random_model(hf, seed=3).eval()
    noise = torch.Generator().manual_seed(4)
    for parameter in (tensor for name, tensor in other.named_parameters() if name.endswith("mlp.gate.weight")):
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=noise) * parameter.data.std()
    # With stop strings, SGLang hands answers through its detokenizer, in base64.
    fields = {"dtype": "float32", "skip_tokenizer_init": name != "softmax", **recording.server_fields}
    with running_engine(resolve(folder), tmp_path / "engine.log", **fields) as engine:
        publish(iter(as_exported(other, folder).items()), [engine.endpoint], 1, 1 << 16)
        segments = asyncio.run(generated(engine.endpoint, folder))
    samples = [_sample(segment) for segment in segments]
    for sample in samples:
        rows = sample.recorded[ROUTED_EXPERTS]
        assert rows.shape == (sample.num_tokens - 1, len(recording.layers), recording.topk), "all but the last token's"
        theirs = chosen_by(other, torch.from_numpy(sample.tokens), recording.num_experts)
        wanted = torch.stack(theirs, dim=1)[:-1].numpy()
        assert np.array_equal(np.sort(rows), np.sort(wanted)), "transformers' routers choose others"
    [ours] = run_ranks(scored, 1, hf["model_type"], checkpoint, samples)
    assert largest_difference(ours["recorded"], by_transformers(checkpoint, samples, replays=True)) <= TOLERANCE
    assert largest_difference(ours["recorded"], ours["own"]) > 0.01, "the trainer's routers choose others"


def _sample(segment: Segment) -> TrainSample:
    segment.check()
    rows = segment.recorded[ROUTED_EXPERTS]
    return TrainSample(
        tokens=np.asarray([*segment.context, *segment.tokens], np.int64),
        loss_mask=np.asarray(segment.loss_mask, np.float32),
        recorded={ROUTED_EXPERTS: np.frombuffer(rows.data, rows.dtype).reshape(rows.shape)},
    )
