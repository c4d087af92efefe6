"""Losses against the papers' formulas, written out token by token in Python floats (float64)."""

import math

import pytest
import torch
from torch import Tensor

from slime.algo.losses import MAX_LOG_RATIO, kl_penalty, policy_loss
from slime.config.schema import KlEstimator

LOG_RATIOS = [-3.0, -0.5, -0.1, 0.0, 0.05, 0.3, 1.5, 3.0]
ADVANTAGES = [-2.0, -0.3, 0.0, 0.7, 1.9]
GRID = [(log_ratio, advantage) for log_ratio in LOG_RATIOS for advantage in ADVANTAGES]


def grid() -> tuple[Tensor, Tensor]:
    log_ratio, advantages = torch.tensor(GRID, dtype=torch.float64).unbind(1)
    return log_ratio.clone().requires_grad_(), advantages


def surrogate(ratio: float, advantage: float, clip_dual: float | None) -> float:
    loss = max(-ratio * advantage, -min(max(ratio, 0.8), 1.3) * advantage)
    return min(loss, -clip_dual * advantage) if clip_dual and advantage < 0 else loss


@pytest.mark.parametrize("clip_dual", [None, 3.0])
def test_policy_loss_is_the_clipped_surrogate(clip_dual: float | None) -> None:
    log_ratio, advantages = grid()
    loss, _ = policy_loss(log_ratio, advantages, clip_low=0.2, clip_high=0.3, clip_dual=clip_dual)
    wanted = [surrogate(math.exp(x), advantage, clip_dual) for x, advantage in GRID]
    torch.testing.assert_close(loss, torch.tensor(wanted, dtype=torch.float64), rtol=1e-14, atol=0)


@pytest.mark.parametrize("clip_dual", [None, 3.0])
def test_clipped_tokens_are_those_without_gradient(clip_dual: float | None) -> None:
    log_ratio, advantages = grid()
    loss, is_clipped = policy_loss(log_ratio, advantages, clip_low=0.2, clip_high=0.3, clip_dual=clip_dual)
    (gradient,) = torch.autograd.grad(loss.sum(), log_ratio)
    free = -log_ratio.detach().exp() * advantages  # d(-exp(x) A) / dx
    torch.testing.assert_close(gradient, free * (1 - is_clipped), rtol=1e-14, atol=0)
    assert 0 < is_clipped.sum() < len(GRID)


def test_dual_clip_only_lowers_the_loss_of_negative_advantages() -> None:
    log_ratio, advantages = grid()
    plain, _ = policy_loss(log_ratio, advantages, clip_low=0.2, clip_high=0.3)
    dual, _ = policy_loss(log_ratio, advantages, clip_low=0.2, clip_high=0.3, clip_dual=3.0)
    assert ((dual < plain) <= (advantages < 0)).all()
    assert (dual < plain).any()


FORMULAS = {
    KlEstimator.k1: lambda x: x,
    KlEstimator.k2: lambda x: x * x / 2,
    KlEstimator.k3: lambda x: math.exp(-x) - 1 + x,
    KlEstimator.low_var_kl: lambda x: math.exp(-x) - 1 + x,
}
SLOPES = {
    KlEstimator.k1: lambda x: 1.0,
    KlEstimator.k2: lambda x: x,
    KlEstimator.k3: lambda x: 1 - math.exp(-x),
    KlEstimator.low_var_kl: lambda x: 1 - math.exp(-x),
}


@pytest.mark.parametrize("estimator", KlEstimator)
def test_kl_and_its_gradient(estimator: KlEstimator) -> None:
    log_ratio = torch.tensor(LOG_RATIOS, dtype=torch.float64, requires_grad=True)
    kl = kl_penalty(log_ratio, estimator)
    (gradient,) = torch.autograd.grad(kl.sum(), log_ratio)
    # exp(-x) - 1 + x cancels near 0, where the reference itself is only good to 1e-16 absolute
    assert kl.tolist() == pytest.approx([FORMULAS[estimator](x) for x in LOG_RATIOS], rel=1e-13, abs=1e-15)
    assert gradient.tolist() == pytest.approx([SLOPES[estimator](x) for x in LOG_RATIOS], rel=1e-13, abs=1e-15)


def test_low_variance_kl_stays_finite_where_k3_overflows() -> None:
    far = torch.tensor([-1000.0, 1000.0])
    assert kl_penalty(far, KlEstimator.k3)[0].isinf()
    bound = math.expm1(MAX_LOG_RATIO) - MAX_LOG_RATIO
    assert kl_penalty(far, KlEstimator.low_var_kl)[0].item() == pytest.approx(bound, rel=1e-6)  # fp32


def test_estimators_of_schulman_agree_in_the_mean() -> None:
    """k1 and k3 are unbiased: their mean over the distribution is the KL divergence itself."""
    p, q = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64), torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
    log_ratio = (p / q).log()
    exact = (p * log_ratio).sum()
    for estimator in (KlEstimator.k1, KlEstimator.k3):
        torch.testing.assert_close((p * kl_penalty(log_ratio, estimator)).sum(), exact, rtol=1e-14, atol=0)
