"""Experts that engines might have chosen, and transformers' models that are made to choose them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from slime import plugins
from slime.config.hf import read_hf_config
from slime.models.bridge import traits_of
from slime.models.traits import Traits
from slime.types import Batch, TrainSample
from slime_megatron.mixture_of_experts.replay import ROUTED_EXPERTS, RoutedExperts
from slime_testing import models
from slime_testing.ranks import Rank
from slime_testing.recorded import forced_experts

TOLERANCE = 1e-5
"""Nats, fp32: the sums run in another order. Another expert costs more than 1e-2."""


def routed_experts(traits: Sequence[Traits]) -> RoutedExperts:
    [found] = [trait.recording for trait in traits if trait.recording]
    assert isinstance(found, RoutedExperts)
    return found


def drawn(recording: RoutedExperts, num_tokens: int, generator: np.random.Generator) -> np.ndarray:
    """[num_tokens, layers, k] different experts, whatever the routers would choose."""
    noise = generator.random((num_tokens, len(recording.layers), recording.num_experts))
    return noise.argsort(axis=-1)[..., : recording.topk].astype(recording.dtype)


def record(samples: list[TrainSample], traits: Sequence[Traits]) -> list[TrainSample]:
    """With experts of all tokens but the last; of every third sample some rows are missing, of every fifth all."""
    recording, generator, found = routed_experts(traits), np.random.default_rng(5), []
    for number, sample in enumerate(samples):
        rows = drawn(recording, sample.num_tokens - 1, generator)
        if number % 3 == 0:
            rows[2:4] = 0
        recorded = {} if number % 5 == 4 else {ROUTED_EXPERTS: rows}
        found.append(dataclasses.replace(sample, recorded=recorded))
    return found


def chosen_by(model: Any, tokens: torch.Tensor, num_experts: int) -> list[torch.Tensor]:
    """What the routers of transformers' own model choose for `tokens` [t]: [t, k] by layer."""
    found, topk = [], torch.topk

    def noting(scores: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = topk(scores, *args, **kwargs)
        if scores.size(-1) == num_experts:
            found.append(result[1])
        return result

    with patch.object(torch, "topk", noting), torch.no_grad():
        model(tokens[None])
    return found


def scored(rank: Rank, family: str, folder: Path, samples: Sequence[TrainSample]) -> dict[str, list[np.ndarray]]:
    """The trainer's log-probs of each sample, [num_tokens - 1], by what decides on the experts: what was `recorded`, or
    the model's `own` routers. Runs in a rank of its own."""
    from megatron_core_portable import cpu_stands_in_for_cuda
    from slime_megatron.train.step import score

    trainer, batch, micros = replaying(rank, family, folder, samples)
    with cpu_stands_in_for_cuda():
        return {
            kind: by_sample(batch, [scores[0] for scores in score(trainer.model, micros, replays=replays)])
            for kind, replays in (("recorded", True), ("own", False))
        }


def replaying(rank: Rank, family: str, folder: Path, samples: Sequence[TrainSample]) -> tuple[Any, Batch, list[Any]]:
    """A trainer, and the samples as a batch and as its micro-batches."""
    from megatron_core_portable import cpu_stands_in_for_cuda
    from slime.train.packing import pack
    from slime_megatron.train.local_batch import local_micro_batches
    from slime_megatron.train.trainer import Trainer

    cfg = models.run_config(family, folder, {})
    cfg.train.routing_replay = True
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    [batch] = pack(samples, num_dp=1, align=1, max_tokens=256, loss_mean=cfg.algo.loss_mean)
    with cpu_stands_in_for_cuda():
        return trainer, batch, local_micro_batches(batch, trainer.device)


def by_sample(batch: Batch, of_micros: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """Log-probs [num_tokens - 1] of each sample, from those [t] of each micro-batch."""
    found: dict[int, np.ndarray] = {}
    for micro, logprobs in zip(batch.micro_batches[0], of_micros, strict=True):
        for number, start, end in zip(micro.sample_ids, micro.cu_seqlens, micro.cu_seqlens[1:], strict=False):
            found[number] = logprobs[start : end - 1].numpy()
    return [found[number] for number in sorted(found)]


def by_transformers(folder: Path, samples: Sequence[TrainSample], *, replays: bool) -> list[np.ndarray]:
    """The same by transformers' own class."""
    from transformers import AutoModelForCausalLM

    recording, found = recording_of(folder), []
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for sample in samples:
        tokens = torch.from_numpy(sample.tokens)
        rows = np.zeros((len(tokens), len(recording.layers), recording.topk), recording.dtype)
        if replays and ROUTED_EXPERTS in sample.recorded:
            rows[: len(tokens) - 1] = sample.recorded[ROUTED_EXPERTS]
        with torch.no_grad(), forced_experts(torch.from_numpy(rows), recording.num_experts):
            logits = model(tokens[None]).logits[0, :-1]
        found.append(logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0].numpy())
    return found


def recording_of(folder: Path) -> RoutedExperts:
    """What an engine of this checkpoint's model records."""
    hf = read_hf_config(str(folder))
    return routed_experts(traits_of(plugins.load().models.create(hf["model_type"]), hf))


def largest_difference(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))
