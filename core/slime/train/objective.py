"""What a micro-batch contributes: its part of the step's loss, and the sums that the metrics are made of.

Shape letter: t tokens of this rank. All losses are already weighted so that plain sums over micro-batches and ranks
are the wanted means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from slime.algo.losses import kl_penalty, policy_loss
from slime.config.schema import AlgoConfig
from slime.train.local_batch import LocalMicroBatch
from slime.train.specs.packed_attention import TokensAhead

MTP_LOSS = "mtp_loss"


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
    scores: Tensor,
    micro: LocalMicroBatch,
    algo: AlgoConfig,
    *,
    old: Tensor | None,
    reference: Tensor | None,
    engine_check: Tensor | None,
) -> Contribution:
    """Clipped policy loss, plus the KL penalty, minus the entropy bonus.

    Args:
        scores: [2, t] log-probs and entropies of the model being trained.
        old: [t] log-probs under the policy that the ratio is taken against; None where that is this very model
            before its only optimizer step.
        reference: [t] log-probs under the reference model, or None without a KL penalty.
        engine_check: [t] log-probs under the weights that the engine generated with, to measure how far the engine's
            own lie from them; None where the trainer no longer has these weights.
    """
    assert micro.advantages is not None, "reinforcement learning needs advantages"
    logprobs, entropy = scores
    mask = micro.loss_mask
    # Masked first: a prompt token's ratio may overflow, and infinity times a weight of zero is not zero.
    log_ratio = (logprobs - (logprobs.detach() if old is None else old)) * mask
    pg_loss, is_clipped = policy_loss(
        log_ratio, micro.advantages, clip_low=algo.clip_low, clip_high=algo.clip_high, clip_dual=algo.clip_dual
    )
    kl = torch.zeros_like(pg_loss)
    if reference is not None:
        kl = kl_penalty((logprobs - reference) * mask, algo.kl_estimator)
    parts = {"pg_loss": pg_loss, "kl": kl, "entropy": entropy}
    parts = {name: (value * micro.loss_weights).sum() for name, value in parts.items()}
    loss = parts["pg_loss"] + algo.kl_coef * parts["kl"] - algo.entropy_coef * parts["entropy"]
    sums = _ratio_sums(log_ratio.detach(), is_clipped, mask)
    maxima = {}
    if engine_check is not None:
        current = mask if micro.is_current is None else mask * micro.is_current
        difference = _engine_difference(engine_check, micro) * current
        sums["logprob_diff_mean"], maxima["logprob_diff_max"] = difference.sum(), difference.max()
        sums["current_share"] = current.sum()
    return Contribution(loss, {"loss": loss, **parts}, sums, maxima)


def with_prediction_ahead(
    contribution: Contribution, logprobs: Tensor, ahead: TokensAhead, scale: float
) -> Contribution:
    """Beside a policy's contribution, the loss of its multi-token prediction layer: cross-entropy (arXiv 2412.19437,
    section 2.2) of the response tokens, each with the weight that it has in the main loss.

    Args:
        logprobs: [t] of the tokens after the next ones, with gradients that end in the prediction layer.
        scale: the loss's weight; `loss` among the means stays the policy's own.
    """
    mtp_loss = (-logprobs * ahead.loss_weights).sum()
    means = {**contribution.means, MTP_LOSS: mtp_loss}
    return replace(contribution, loss=contribution.loss + scale * mtp_loss, means=means)


def _ratio_sums(log_ratio: Tensor, is_clipped: Tensor, mask: Tensor) -> dict[str, Tensor]:
    values = {
        "clip_fraction": is_clipped,
        "ratio_mean": log_ratio.exp(),
        "approx_kl": torch.expm1(log_ratio) - log_ratio,
    }
    return {name: (value * mask).sum() for name, value in values.items()}


def _engine_difference(logprobs: Tensor, micro: LocalMicroBatch) -> Tensor:
    """[t] absolute difference to the engine's log-probs of the same tokens, in nats."""
    assert micro.rollout_logprobs is not None, "reinforcement learning records the engine's log-probs"
    return (logprobs.detach() - micro.rollout_logprobs).abs()
