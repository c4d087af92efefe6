"""Samples drawn from the likeliest tokens alone: what a real engine says of them, beside transformers in float64, and
the trainer's log-probs of the same tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from slime.config.hf import read_hf_config
from slime.config.paths import resolve
from slime.config.schema import SamplingConfig
from slime.data.tokenize import load_tokenizer
from slime.engine_client.engine_set import EngineSet
from slime.errors import SlimeError
from slime.net import Endpoint
from slime.sampling.generate import Generator
from slime.sampling.samples import compare, with_numbers
from slime.segments import Segment
from slime.topology.kept_tokens import KeptTokens
from slime.types import KEPT_TOKENS, ROLLOUT_LOGPROBS, Group, Prompt, Sample, Status, TrainSample, Verdict
from slime_sglang.engine.driver.client import SGLangClient
from slime_testing import models
from slime_testing.engines import as_exported, running_engine
from slime_testing.publishing import publish
from slime_testing.ranks import Rank, run_ranks

TINY = "pkg://slime_plugin_glm4/assets/glm4-tiny"
PROMPT = Prompt("0/1", (), tuple(range(20, 33)))
TOP_K, TOP_P, TEMPERATURE = 6, 0.8, 0.7
SHARP = 4
"""The output layer of random weights knows no token that is likelier than others."""
NATS = 5e-5
"""fp32 in engine and trainer, float64 here; logits reach 10."""


async def generated(engine: Endpoint) -> list[Segment]:
    """Three responses that come at once; one that goes on behind what a program wrote; and one in two requests."""
    client = SGLangClient(engine)
    sampling = SamplingConfig(max_response_tokens=200, temperature=TEMPERATURE, top_p=TOP_P, top_k=TOP_K)
    generator = Generator(EngineSet([client]), sampling, load_tokenizer(resolve(TINY)), recordings=[KeptTokens(TOP_K)])
    try:
        segments = [Segment(PROMPT.tokens) for _ in range(5)]
        await asyncio.gather(*(generator.continue_response(one, 0, 16, 1, seed=n) for n, one in enumerate(segments)))
        spoken = segments[1]
        spoken.write([60, 61, 62])
        begun = len(spoken.tokens)
        await generator.continue_response(spoken, begun, begun + 9, 1, seed=7)
        await generator.continue_response(segments[2], 0, len(segments[2].tokens) + 9, 1, seed=8)
        return segments
    finally:
        await client.close()


def trained(rank: Rank, folder: Path, samples: Sequence[TrainSample], share_below: float) -> np.ndarray:
    """[tokens] log-probs of the loss tokens, of all samples in one pack."""
    from megatron_core_portable import cpu_stands_in_for_cuda
    from slime.config.schema import SlimeConfig
    from slime.train.packing import pack
    from slime_megatron.train.local_batch import local_micro_batches
    from slime_megatron.train.step import score
    from slime_megatron.train.trainer import Trainer

    cfg = SlimeConfig()
    cfg.model.family, cfg.model.path, cfg.rollout.sampling.temperature = "glm4", str(folder), TEMPERATURE
    cfg.run.num_steps = 1
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    options: dict[str, Any] = {"align": trainer.packing_align, "max_tokens": 1000, "share_below": share_below}
    [batch] = pack(samples, num_dp=1, loss_mean=cfg.algo.loss_mean, **options)
    with cpu_stands_in_for_cuda():
        micro_batches = local_micro_batches(batch, trainer.device)
        for module in trainer.model.modules:
            module.temperature = TEMPERATURE
        scores = score(trainer.model, micro_batches)
    [micro], [found] = micro_batches, scores
    off = (found[0] - micro.columns[ROLLOUT_LOGPROBS])[micro.loss_mask != 0]
    return off.numpy()


@pytest.mark.slow
def test_engine_and_trainer_have_the_distribution_of_the_kept_tokens(tmp_path: Path) -> None:
    hf, folder = read_hf_config(TINY), tmp_path / "model"
    models.write_checkpoint(hf, folder, seed=3)
    model = models.random_model(hf, seed=3).eval()
    tensors = load_file(folder / "model.safetensors")
    for weights in (tensors["lm_head.weight"], model.lm_head.weight.data):
        weights *= SHARP
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with running_engine(resolve(TINY), tmp_path / "engine.log", skip_tokenizer_init=True) as engine:
        publish(iter(as_exported(model, TINY).items()), [engine.endpoint], 1, 1 << 16)
        segments = asyncio.run(generated(engine.endpoint))
    done = [
        Sample(PROMPT, number, [segment], Status.COMPLETED, verdict=Verdict.of(float(number)))
        for number, segment in enumerate(segments)
    ]
    compared = compare([Group(PROMPT, done)], 2, 1, None).sequences
    samples, means = with_numbers(compared, [KEPT_TOKENS])
    model, sizes = model.double(), []
    for sample in samples:
        with torch.no_grad():
            logits = model(torch.from_numpy(sample.tokens)[None]).logits[0, :-1][-sample.num_response_tokens :]
        p = (logits / TEMPERATURE).softmax(-1).numpy()
        kept = sample.columns[KEPT_TOKENS]
        assert kept.shape == (sample.num_response_tokens, TOP_K + 1)
        for place in np.flatnonzero(sample.loss_mask):
            ids, label = kept[place][kept[place] > 0] - 1, sample.tokens[-sample.num_response_tokens :][place]
            order = np.argsort(-p[place])
            before = np.cumsum(p[place][order]) - p[place][order]
            assert set(ids) == set(order[:TOP_K][before[:TOP_K] <= TOP_P])  # nothing lies within 1e-6 of the border
            exact = np.log(p[place][label] / p[place][ids].sum())
            assert sample.columns[ROLLOUT_LOGPROBS][place] == pytest.approx(exact, abs=NATS)
            sizes.append(len(ids))
    assert [int(sample.loss_mask.sum()) for sample in samples][1] < samples[1].num_response_tokens
    assert 1 <= min(sizes) < max(sizes) == TOP_K
    assert means == {f"rollout/{KEPT_TOKENS}": pytest.approx(np.mean(sizes))}
    for share_below in (0.0, 1.0):  # each with its prompt, and behind one copy of it
        [off] = run_ranks(trained, 1, folder, samples, share_below)
        assert len(off) == len(sizes)
        assert np.abs(off).max() < NATS
    [off] = run_ranks(trained, 1, folder, compared, 0.0)
    assert np.abs(off).mean() > 0.05, "the full distribution has lower log-probs"


def test_an_answer_that_does_not_say_is_refused() -> None:
    recording = KeptTokens(2)
    logprobs = [(-1.0, 7, None), (-2.0, 8, None)]
    good = {"output_token_logprobs": logprobs, "output_token_sampling_mask": [[7], [5, 8, 9]]}
    rows = recording.read(good, [1, 7, 8])
    assert rows is not None
    assert np.frombuffer(rows.data, "<i4").reshape(rows.shape).tolist() == [[0, 0, 0], [8, 0, 0], [6, 9, 10]]
    assert recording.read({}, [1, 7, 8], rows) is rows, "an answer without tokens"
    for kept in (None, [[7]], [[7], [5]], [[7], None]):
        with pytest.raises(SlimeError, match="does not say from which tokens each was drawn"):
            recording.read({**good, "output_token_sampling_mask": kept}, [1, 7, 8])
