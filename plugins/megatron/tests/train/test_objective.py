"""Whole steps against the papers' formulas over transformers in float64: tokens that other weights sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from slime_testing.ranks import Rank, run_ranks

from .one_rank import HF, packed, recorded, start, with_transformers_logprobs, write_model

CORRECTIONS = {
    "stale, truncated": {"importance_low": 0.5},
    "stale, masked": {"importance": "mask", "importance_low": 0.5},
    "all, truncated": {"importance_tokens": "all"},
    "all, masked": {"importance": "mask", "importance_tokens": "all", "importance_low": 0.5, "importance_high": 5.0},
    "in the PPO ratio": {"rollout_logprobs_as_old": True},
}


def of_older_weights() -> list[Any]:
    """Recorded samples, partly of older weights, whose log-probs under what sampled them lie around the model's."""
    generator, found = np.random.default_rng(5), []
    for sample in with_transformers_logprobs(recorded(), 1.0):
        noise = generator.normal(0, 0.8, sample.num_response_tokens).astype(np.float32)
        moved = sample.columns["rollout_logprobs"] + noise
        current = (generator.random(sample.num_response_tokens) < 0.5).astype(np.float32)
        found.append(sample.with_columns(rollout_logprobs=moved, is_current=current))
    return found


def corrected(rank: Rank, model: Path) -> dict[str, list[dict[str, float]]]:
    """Every correction's only step of a rollout, and its two steps from unmoved weights."""
    from slime.config.schema import Importance, ImportanceTokens

    words, found = {**Importance.__members__, **ImportanceTokens.__members__}, {}
    for name, settings in CORRECTIONS.items():
        algo = {key: words[value] if isinstance(value, str) else value for key, value in settings.items()}
        trainer = start(rank, model, **algo)
        one = trainer.train(packed(trainer, of_older_weights()), 0, "rl")
        trainer.init_weights()
        trainer.optimizer.megatron.step = lambda: (True, 0.0, None)
        found[name] = [one, trainer.train(packed(trainer, of_older_weights(), steps=2), 1, "rl")]
        dist.destroy_process_group()
        rank = rank.again()
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, float]]]:
    return run_ranks(corrected, 1, write_model(tmp_path_factory))[0]


def by_the_papers(samples: list[Any], settings: dict[str, Any]) -> dict[str, float]:
    """Transformers in float64, a sample at a time: loss, gradient norm and weights by the papers' formulas."""
    import torch

    from slime_testing.models import random_model

    model, losses, ratios, outside = random_model(HF).double(), [], [], []
    low, high = settings.get("importance_low", 0.0), settings.get("importance_high", 2.0)
    for sample in samples:
        tokens, count = torch.from_numpy(sample.tokens), sample.num_response_tokens
        logp = model(tokens[None]).logits[0, -count - 1 : -1].log_softmax(1).gather(1, tokens[-count:, None])[:, 0]
        sampled = torch.from_numpy(sample.columns["rollout_logprobs"]).double()
        for t in range(count):
            if not sample.loss_mask[t]:
                continue
            w, advantage, weight = (logp[t].detach() - sampled[t]).exp(), float(sample.columns["advantages"][t]), 1.0
            ratio = (logp[t] - logp[t].detach()).exp()
            if settings.get("rollout_logprobs_as_old"):
                ratio = (logp[t] - sampled[t]).exp()
            elif settings.get("importance_tokens") == "all" or not sample.columns["is_current"][t]:
                ratios.append(float(w))
                outside.append(not low <= w <= high)
                kept = w if not outside[-1] else 0.0
                weight = kept if settings.get("importance") == "mask" else min(max(w, low), high)
            surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
            losses.append(-weight * surrogate)
    loss = torch.stack(losses).mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    values = {"pg_loss": loss.item(), "grad_norm": norm.item()}
    if ratios:
        name = "importance_masked_share" if settings.get("importance") == "mask" else "importance_truncated_share"
        values |= {"importance_ratio_mean": float(np.mean(ratios)), "importance_ratio_max": max(ratios)}
        values[name] = sum(outside) / len(losses)
    return values


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRECTIONS)
def test_tokens_of_older_weights_are_corrected(results: dict[str, list[dict[str, float]]], name: str) -> None:
    """fp32 against float64: 1e-6 on means of order 1, 1e-5 relative on norm and largest ratio."""
    samples, (one_step, two_steps) = of_older_weights(), results[name]
    wanted = by_the_papers(samples, CORRECTIONS[name])
    assert {key: one_step[key] for key in wanted} == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    untouched = by_the_papers([x.with_columns(is_current=np.ones_like(x.loss_mask)) for x in samples], {})
    assert abs(wanted["grad_norm"] / untouched["grad_norm"] - 1) > 0.02  # it would show if nothing were corrected
    halves = [by_the_papers(half, CORRECTIONS[name])["pg_loss"] for half in (samples[:8], samples[8:])]
    assert two_steps["pg_loss"] == pytest.approx(np.mean(halves), abs=1e-6)
    stale = [1 - x.columns["is_current"][x.loss_mask == 1] for x in samples]
    assert one_step["stale_share"] == pytest.approx(np.concatenate(stale).mean(), rel=1e-12)
    of_halves = [np.concatenate(half).mean() for half in (stale[:8], stale[8:])]
    assert two_steps["stale_share"] == pytest.approx(np.mean(of_halves), rel=1e-12), "of both optimizer steps"
