"""Per-token losses of policy optimisation. Every tensor has shape [tokens]; log-probs are natural logarithms."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from slime.config.schema import Importance, KlEstimator

MAX_LOG_RATIO = 20.0
"""Bound of every exponent: exp(20) is about 5e8, far from overflow in fp32."""
MAX_KL = 10.0
"""Bound of the value of `low_var_kl`, in nats."""


class Clips(NamedTuple):
    """1.0 where a bound took a token's gradient, elsewhere 0.0. No token is in two of them."""

    low: Tensor  # the ratio lies below 1 - clip_low (negative advantage)
    high: Tensor  # the ratio lies above 1 + clip_high (positive advantage)
    dual: Tensor  # the ratio of a negative advantage lies above the dual clip, or above exp(`MAX_LOG_RATIO`)


def bounded_ratio(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio), with log_ratio kept within +-20: an infinite ratio has NaN gradients even where it is clipped."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def policy_loss(
    log_ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float, clip_dual: float | None = None
) -> tuple[Tensor, Clips]:
    """Clipped surrogate of PPO (arXiv 1707.06347, equation 7), to be minimised.

    With unequal bounds this is the clip-higher of DAPO (arXiv 2503.14476, section 3.1); `clip_dual` bounds the loss of
    negative advantages by c * |A| (dual-clip PPO, arXiv 1912.09729, equation 5).

    Args:
        log_ratio: log pi(token) - log pi_old(token); carries the gradient.
        advantages: without gradient.
        clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high].
        clip_dual: c > 1, or None.
    """
    assert clip_dual is None or clip_dual > 1, "the dual clip lies above every ordinary ratio"
    ratio, negative = bounded_ratio(log_ratio), advantages < 0
    unclipped = -ratio * advantages
    clipped = -ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    loss, is_clipped = torch.maximum(unclipped, clipped), clipped > unclipped
    too_large = negative & (log_ratio > MAX_LOG_RATIO)
    if clip_dual is not None:
        bound = -clip_dual * advantages
        too_large = negative & (loss > bound)
        loss = torch.where(too_large, bound, loss)
    return loss, Clips(*(x.to(loss.dtype) for x in (is_clipped & negative, is_clipped & ~negative, too_large)))


def importance_weights(log_ratio: Tensor, importance: Importance, *, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Weights that correct the losses of tokens which another policy sampled, from w = pi_old / pi_sampled.

    truncate: w clipped to [low, high] (truncated importance sampling, Ionides 2008, which has no lower bound). mask: w
    inside [low, high], else 0 (IcePop, arXiv 2510.18855). Beside a PPO ratio pi / pi_old the weight makes the decoupled
    objective of arXiv 2110.00641.

    Args:
        log_ratio: log pi_old(token) - log pi_sampled(token), without gradient.

    Returns:
        The weights, and 1.0 where w lay outside [low, high], else 0.0.
    """
    ratio = bounded_ratio(log_ratio)
    inside = ((ratio >= low) & (ratio <= high)).to(ratio.dtype)
    return (ratio.clamp(low, high) if importance is Importance.truncate else ratio * inside), 1 - inside


def kl_penalty(log_ratio: Tensor, estimator: KlEstimator) -> Tensor:
    """Per-token estimate of KL(pi || pi_ref) from samples of pi (Schulman 2020, joschu.net/blog/kl-approx.html).

    With r = pi_ref / pi: k1 = -log r, k2 = (log r)^2 / 2, k3 = r - 1 - log r; low_var_kl is k3, at most 10, with log r
    kept within +-20. A good estimate of the divergence is no good estimate of its gradient. In expectation over pi the
    gradients are: of k1, 0 (it is noise alone); of k2, that of KL(pi || pi_ref); of k3 and, within its bounds,
    low_var_kl, that of KL(pi_ref || pi).

    Args:
        log_ratio: log pi(token) - log pi_ref(token), that is -log r; carries the gradient.
    """
    match estimator:
        case KlEstimator.k1:
            return log_ratio
        case KlEstimator.k2:
            return log_ratio.square() / 2
        case KlEstimator.k3:
            return torch.expm1(-log_ratio) + log_ratio
        case KlEstimator.low_var_kl:
            bounded = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
            return (torch.expm1(-bounded) + bounded).clamp(max=MAX_KL)


def unbiased_kl(penalty: Tensor, log_ratio: Tensor, estimator: KlEstimator) -> Tensor:
    """`kl_penalty` times r = pi / pi_old, so that over samples of pi_old it has the gradient of KL(pi || pi_ref).

    k1 and k3 have it with the gradient of r, by the product rule (DeepSeek-AI 2025, arXiv 2512.02556, section 3.1). k2
    has it without: its own gradient is right over samples of pi, which is what r makes of those of pi_old.

    Args:
        log_ratio: log pi(token) - log pi_old(token); carries the gradient.
    """
    ratio = bounded_ratio(log_ratio)
    return (ratio.detach() if estimator is KlEstimator.k2 else ratio) * penalty
