"""Per-token losses of policy optimisation. Every tensor has shape [tokens]; log-probs are natural logarithms."""

from __future__ import annotations

import torch
from torch import Tensor

from slime.config.schema import KlEstimator

MAX_LOG_RATIO = 20.0
"""Bound of the exponent in `low_var_kl`: exp(20) is about 5e8, far from overflow in fp32."""


def policy_loss(
    log_ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float, clip_dual: float | None = None
) -> tuple[Tensor, Tensor]:
    """Clipped surrogate of PPO (arXiv 1707.06347, equation 7), to be minimised.

    With unequal bounds this is the clip-higher of DAPO (arXiv 2503.14476, section 3.1); `clip_dual` bounds the loss of
    negative advantages by c * |A| (dual-clip PPO, arXiv 1912.09729, equation 5).

    Args:
        log_ratio: log pi(token) - log pi_old(token); carries the gradient.
        advantages: without gradient.
        clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high].
        clip_dual: c > 1, or None.

    Returns:
        The loss, and 1.0 where a clip was active (the token then has no gradient), else 0.0.
    """
    assert clip_dual is None or clip_dual > 1, "the dual clip lies above every ordinary ratio"
    ratio = log_ratio.exp()
    unclipped = -ratio * advantages
    clipped = -ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    loss, is_clipped = torch.maximum(unclipped, clipped), clipped > unclipped
    if clip_dual is not None:
        bound = -clip_dual * advantages
        too_large = (advantages < 0) & (loss > bound)
        loss, is_clipped = torch.where(too_large, bound, loss), is_clipped | too_large
    return loss, is_clipped.to(loss.dtype)


def kl_penalty(log_ratio: Tensor, estimator: KlEstimator) -> Tensor:
    """Per-token estimate of KL(pi || pi_ref) from samples of pi (Schulman 2020, joschu.net/blog/kl-approx.html).

    With r = pi_ref / pi: k1 = -log r, k2 = (log r)^2 / 2, k3 = r - 1 - log r; low_var_kl is k3 with log r kept
    within +-20. All are differentiated as they stand.

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
            return torch.expm1(-bounded) + bounded
