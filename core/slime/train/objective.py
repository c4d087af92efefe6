"""What a micro-batch contributes: its part of the step's loss, and the sums that the metrics are made of.

Shape letter: t tokens of this rank. All losses are already weighted so that plain sums over micro-batches and ranks
are the wanted means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from slime.algo.losses import MAX_LOG_RATIO, Clips, bounded_ratio, importance_weights, kl_penalty, policy_loss
from slime.config.schema import AlgoConfig, Importance, ImportanceTokens
from slime.train.local_batch import LocalMicroBatch

OUTSIDE_SHARE = {Importance.truncate: "importance_truncated_share", Importance.mask: "importance_masked_share"}
"""The metric that counts the tokens whose importance ratio lay outside the bounds, by what was done with them."""


@dataclass(frozen=True)
class Contribution:
    """Of one micro-batch.

    Attributes:
        loss: scalar with gradient.
        means: scalars that sum up to means weighted like the loss.
        token_sums: scalars that sum up to sums over loss tokens.
        maxima: scalars whose maximum counts.
    """

    loss: Tensor
    means: Mapping[str, Tensor]
    token_sums: Mapping[str, Tensor] = field(default_factory=dict)
    maxima: Mapping[str, Tensor] = field(default_factory=dict)

    def detach(self) -> Contribution:
        """The same numbers without the graph that led to them."""
        groups = (self.means, self.token_sums, self.maxima)
        return Contribution(self.loss.detach(), *({name: x.detach() for name, x in group.items()} for group in groups))


def supervised(scores: Tensor, micro: LocalMicroBatch) -> Contribution:
    """Negative log-likelihood of the response tokens. scores: [2, t] log-probs and entropies."""
    logprobs, entropy = scores
    loss = (-logprobs * micro.loss_weights).sum()
    return Contribution(loss, {"loss": loss, "entropy": (entropy * micro.loss_weights).sum()})


def reinforced(
    scores: Tensor, micro: LocalMicroBatch, algo: AlgoConfig, *, start: Tensor | None, reference: Tensor | None
) -> Contribution:
    """Clipped policy loss, plus the KL penalty, minus the entropy bonus.

    Args:
        scores: [2, t] log-probs and entropies of the model being trained.
        start: [t] log-probs, without gradient, under the weights before the rollout's first optimizer step: those that
            the engine held when it sampled the current tokens. None where nobody computed them, which only
            `algo.rollout_logprobs_as_old` allows.
        reference: [t] log-probs under the reference model, or None where there is none.
    """
    assert micro.advantages is not None, "reinforcement learning needs advantages"
    assert micro.rollout_logprobs is not None, "reinforcement learning records the engine's log-probs"
    logprobs, entropy = scores
    mask = micro.loss_mask
    old = micro.rollout_logprobs if algo.rollout_logprobs_as_old else start
    assert old is not None, "the trainer's own log-probs are the old policy's"
    # Masked first: a prompt token's ratio may overflow, and infinity times a weight of zero is not zero.
    log_ratio = (logprobs - old) * mask
    pg_loss, clips = policy_loss(
        log_ratio, micro.advantages, clip_low=algo.clip_low, clip_high=algo.clip_high, clip_dual=algo.clip_dual
    )
    sums = {"entropy": (entropy.detach() * mask).sum(), **_ratio_sums(log_ratio.detach(), clips, mask)}
    maxima: dict[str, Tensor] = {}
    if start is not None:
        current = mask if micro.is_current is None else mask * micro.is_current
        log_weight = (start - micro.rollout_logprobs) * mask
        sums |= _engine_sums(log_weight * current, current, mask)
        maxima["logprob_diff_max"] = (log_weight * current).abs().max()
        if not algo.rollout_logprobs_as_old:
            corrected = mask if algo.importance_tokens is ImportanceTokens.all else mask - current
            pg_loss = pg_loss * _correct(log_weight, corrected, algo, sums, maxima)
    pg_loss = (pg_loss * micro.loss_weights).sum()
    loss = pg_loss - algo.entropy_coef * (entropy * micro.loss_weights).sum()
    if reference is not None:
        kl = kl_penalty((logprobs - reference) * mask, algo.kl_estimator)
        sums["kl"] = (kl.detach() * mask).sum()
        if algo.kl_coef:
            loss = loss + algo.kl_coef * (kl * micro.loss_weights).sum()
    return Contribution(loss, {"loss": loss, "pg_loss": pg_loss}, sums, maxima)


def _correct(
    log_weight: Tensor, corrected: Tensor, algo: AlgoConfig, sums: dict[str, Tensor], maxima: dict[str, Tensor]
) -> Tensor:
    """[t] factors of the policy loss: importance weights where `corrected` is 1, else 1; adds their metrics.

    Args:
        log_weight: [t] log-prob of the trainer minus the engine's of the same token.
    """
    weights, is_outside = importance_weights(
        log_weight, algo.importance, low=algo.importance_low, high=algo.importance_high
    )
    ratio = bounded_ratio(log_weight) * corrected
    sums["corrected_share"], sums["importance_ratio_mean"] = corrected.sum(), ratio.sum()
    sums[OUTSIDE_SHARE[algo.importance]] = (is_outside * corrected).sum()
    maxima["importance_ratio_max"] = ratio.max()
    return torch.where(corrected > 0, weights, 1.0)


def with_extra_loss(contribution: Contribution, name: str, loss: Tensor, scale: float) -> Contribution:
    """Beside a policy's contribution, the loss of another part of the model, a scalar, under its own name.

    Args:
        scale: the loss's weight; `loss` among the means stays the policy's own.
    """
    means = {**contribution.means, name: loss}
    return replace(contribution, loss=contribution.loss + scale * loss, means=means)


def _ratio_sums(log_ratio: Tensor, clips: Clips, mask: Tensor) -> dict[str, Tensor]:
    """Of the ratio to the old policy; `approx_kl` estimates KL(old || new)."""
    bounded = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    values = {
        "clip_fraction": clips.low + clips.high + clips.dual,
        "clip_low_fraction": clips.low,
        "clip_high_fraction": clips.high,
        "ratio_mean": bounded.exp(),
        "approx_kl": torch.expm1(bounded) - bounded,
    }
    return {name: (value * mask).sum() for name, value in values.items()}


def _engine_sums(log_weight: Tensor, current: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """How far the trainer's log-probs lie from the engine's where both had the same weights.

    `engine_kl` estimates KL(engine || trainer) from the engine's samples (k3 of Schulman 2020). `current_share` is what
    these sums are over.
    """
    bounded = log_weight.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return {
        "logprob_diff_mean": log_weight.abs().sum(),
        "engine_kl": (torch.expm1(bounded) - bounded).sum(),
        "current_share": current.sum(),
        "stale_share": (mask - current).sum(),
    }
