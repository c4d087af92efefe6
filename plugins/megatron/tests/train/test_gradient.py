"""Whole gradients of full training, by parameter, against transformers' own class in float64 and the papers' losses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from slime_testing.ranks import Rank, run_ranks
from slime_testing.training import Gradients, record_gradients

from .one_rank import HF, packed, recorded, start, write_model

TOLERANCE = 3e-5
"""Relative to the largest entry of a parameter's gradient: fp32 against float64, sums of some hundred tokens behind two
layers."""
ENTROPY_COEF = 0.3
OBJECTIVES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "policy": ("rl", {}),
    "policy and entropy": ("rl", {"entropy_coef": ENTROPY_COEF}),
    "demonstrations": ("sft", {}),
    "policy and entropy of kept tokens": ("rl", {"entropy_coef": ENTROPY_COEF}),
}


def samples_of(name: str) -> list[Any]:
    from slime_testing.recorded import narrowed

    return narrowed(recorded(), HF["vocab_size"]) if "kept" in name else recorded()


def gradients_of(rank: Rank, model: Path) -> dict[str, tuple[Gradients, float]]:
    """Of one optimizer step in four micro-batches, and the norm that it was taken with."""
    found = {}
    for name, (stage, algo) in OBJECTIVES.items():
        trainer = start(rank, model, **algo)
        gradients = record_gradients(trainer)
        values = trainer.train(packed(trainer, samples_of(name), max_tokens=100), 1, stage)
        found[name] = (gradients[0], values["grad_norm"])
        rank = rank.again()
        dist.destroy_process_group()
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Gradients, float]]:
    return run_ranks(gradients_of, 1, write_model(tmp_path_factory))[0]


def wanted_of(name: str) -> dict[str, np.ndarray]:
    """Mean over all loss tokens, a sample at a time. The policy's ratio to itself is 1, and its gradient that of the
    log-prob; the entropy is -sum p log p of the place's distribution, and a bonus raises it. Where tokens were kept,
    the distribution is the softmax of their logits alone."""
    from slime_testing.models import random_model

    model, losses = random_model(HF).double(), []
    model.model.embed_tokens.padding_idx = None  # token 0 is drawn as any other
    stage, algo = OBJECTIVES[name]
    for sample in samples_of(name):
        tokens, count = torch.from_numpy(sample.tokens), sample.num_response_tokens
        logits = model(tokens[None]).logits[0, -count - 1 : -1]
        left_out = torch.zeros_like(logits, dtype=torch.bool)
        if "kept" in name:
            kept = torch.from_numpy(sample.columns["kept_tokens"]).long()
            left_out = torch.ones(count, logits.size(1) + 1, dtype=torch.bool).scatter(1, kept, False)[:, 1:]
        logp = logits.masked_fill(left_out, -torch.inf).log_softmax(1)
        own = logp.gather(1, tokens[-count:, None])[:, 0]
        advantages = torch.from_numpy(sample.columns["advantages"]).double() if stage == "rl" else 1.0
        bonus = algo.get("entropy_coef", 0.0) * -(logp.exp() * logp.masked_fill(left_out, 0.0)).sum(1)
        losses.append((-advantages * own - bonus)[torch.from_numpy(sample.loss_mask) == 1])
    torch.cat(losses).mean().backward()
    return {name: value.grad.numpy() for name, value in model.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_are_those_of_transformers(name: str, found: dict[str, tuple[Gradients, float]]) -> None:
    (gradients, norm), wanted = found[name], wanted_of(name)
    assert wanted.keys() == gradients.keys()
    assert len(wanted) > 20
    for parameter, gradient in wanted.items():
        off = np.abs(gradients[parameter] - gradient).max() / np.abs(gradient).max()
        assert off < TOLERANCE, f"{parameter} is off by {off:.1e}"
    assert norm == pytest.approx(np.sqrt(sum(np.square(x).sum() for x in wanted.values())), rel=1e-5)


def test_the_bonus_shows() -> None:
    """Or its sign would change nothing above."""
    plain, bold = wanted_of("policy"), wanted_of("policy and entropy")
    assert max(np.abs(bold[name] - plain[name]).max() / np.abs(plain[name]).max() for name in plain) > 0.05
