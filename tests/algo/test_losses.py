"""Losses against the papers' formulas, written out token by token in Python floats (float64)."""

import math

import pytest
import torch
from torch import Tensor

from slime.algo.losses import MAX_KL, importance_weights, kl_penalty, policy_loss
from slime.config.schema import Importance, KlEstimator

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
    loss, clips = policy_loss(log_ratio, advantages, clip_low=0.2, clip_high=0.3, clip_dual=clip_dual)
    (gradient,) = torch.autograd.grad(loss.sum(), log_ratio)
    free = -log_ratio.detach().exp() * advantages  # d(-exp(x) A) / dx
    torch.testing.assert_close(gradient, free * (1 - clips.low - clips.high - clips.dual), rtol=1e-14, atol=0)


def test_clips_are_told_apart() -> None:
    log_ratio, advantages = grid()
    _, clips = policy_loss(log_ratio, advantages, clip_low=0.2, clip_high=0.3, clip_dual=3.0)
    assert clips.low.tolist() == [math.exp(x) < 0.8 and advantage < 0 for x, advantage in GRID]
    assert clips.high.tolist() == [math.exp(x) > 1.3 and advantage > 0 for x, advantage in GRID]
    assert clips.dual.tolist() == [math.exp(x) > 3.0 and advantage < 0 for x, advantage in GRID]


@pytest.mark.parametrize("clip_dual", [None, 3.0])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_a_ratio_that_overflows_stays_out_of_the_gradient(advantage: float, clip_dual: float | None) -> None:
    """fp32's exp ends at 88.7; infinity times the zero of a clip is NaN."""
    log_ratio = torch.tensor([-1000.0, -89.0, 89.0, 1000.0], requires_grad=True)
    loss, clips = policy_loss(log_ratio, torch.full((4,), advantage), clip_low=0.2, clip_high=0.28, clip_dual=clip_dual)
    (gradient,) = torch.autograd.grad(loss.sum(), log_ratio)
    assert loss.isfinite().all()
    assert gradient.tolist() == [0, 0, 0, 0]  # below, the ratio itself is 0; above, it is clipped
    assert (clips.low + clips.high + clips.dual)[2:].tolist() == [1, 1]


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
    KlEstimator.low_var_kl: lambda x: min(math.exp(-x) - 1 + x, 10.0),
}
SLOPES = {
    KlEstimator.k1: lambda x: 1.0,
    KlEstimator.k2: lambda x: x,
    KlEstimator.k3: lambda x: 1 - math.exp(-x),
    KlEstimator.low_var_kl: lambda x: 1 - math.exp(-x) if math.exp(-x) - 1 + x < 10 else 0.0,
}


@pytest.mark.parametrize("estimator", KlEstimator)
def test_kl_and_its_gradient(estimator: KlEstimator) -> None:
    log_ratio = torch.tensor(LOG_RATIOS, dtype=torch.float64, requires_grad=True)
    kl = kl_penalty(log_ratio, estimator)
    (gradient,) = torch.autograd.grad(kl.sum(), log_ratio)
    # exp(-x) - 1 + x cancels near 0, where the reference itself is only good to 1e-16 absolute
    assert kl.tolist() == pytest.approx([FORMULAS[estimator](x) for x in LOG_RATIOS], rel=1e-13, abs=1e-15)
    assert gradient.tolist() == pytest.approx([SLOPES[estimator](x) for x in LOG_RATIOS], rel=1e-13, abs=1e-15)


def test_no_token_owns_the_gradient_of_low_variance_kl() -> None:
    """At 15 nats k3 has value and gradient 3.3e6."""
    far = torch.tensor([-1000.0, -15.0, 15.0, 1000.0], requires_grad=True)
    kl = kl_penalty(far, KlEstimator.low_var_kl)
    assert kl.tolist() == [MAX_KL] * 4
    assert torch.autograd.grad(kl.sum(), far)[0].tolist() == [0] * 4


TRUE_GRADIENTS = {  # of the two divergences, as they are defined
    KlEstimator.k1: lambda logp, logq: 0 * logp.sum(),
    KlEstimator.k2: lambda logp, logq: (logp.exp() * (logp - logq)).sum(),
    KlEstimator.k3: lambda logp, logq: (logq.exp() * (logq - logp)).sum(),
    KlEstimator.low_var_kl: lambda logp, logq: (logq.exp() * (logq - logp)).sum(),
}


@pytest.mark.parametrize("estimator", KlEstimator)
def test_what_an_estimator_is_as_a_penalty(estimator: KlEstimator) -> None:
    """The expectation of its gradient over a categorical, summed exactly, is that of the divergence named."""
    torch.manual_seed(0)
    logits, logq = torch.randn(7, dtype=torch.float64, requires_grad=True), torch.randn(7, dtype=torch.float64)
    logp, logq = logits.log_softmax(0), logq.log_softmax(0)
    sampled = (logp.detach().exp() * kl_penalty(logp - logq, estimator)).sum()
    (gradient,) = torch.autograd.grad(sampled, logits, retain_graph=True)
    (wanted,) = torch.autograd.grad(TRUE_GRADIENTS[estimator](logp, logq), logits)
    torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-15)


def test_estimators_of_schulman_agree_in_the_mean() -> None:
    """k1 and k3 are unbiased: their mean over the distribution is the KL divergence itself."""
    p, q = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64), torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
    log_ratio = (p / q).log()
    exact = (p * log_ratio).sum()
    for estimator in (KlEstimator.k1, KlEstimator.k3):
        torch.testing.assert_close((p * kl_penalty(log_ratio, estimator)).sum(), exact, rtol=1e-14, atol=0)


@pytest.mark.parametrize("importance", Importance)
def test_importance_weights_are_clipped_or_masked(importance: Importance) -> None:
    weights, is_outside = importance_weights(torch.tensor(LOG_RATIOS).double(), importance, low=0.5, high=2.0)
    for x, weight, outside in zip(LOG_RATIOS, weights.tolist(), is_outside.tolist(), strict=True):
        ratio = math.exp(x)
        assert outside == (not 0.5 <= ratio <= 2.0)
        clipped = min(max(ratio, 0.5), 2.0)
        wanted = clipped if importance is Importance.truncate else 0.0 if outside else ratio
        assert weight == pytest.approx(wanted, rel=1e-7)  # the log-ratios are fp32


@pytest.mark.parametrize("importance", Importance)
def test_a_ratio_at_a_bound_is_inside(importance: Importance) -> None:
    """`importance_low` and `importance_high` may both be 1, and tokens whose policies agree have that ratio."""
    for low, high in ((1.0, 1.0), (1.0, 2.0), (0.5, 1.0)):
        weights, is_outside = importance_weights(torch.zeros(2), importance, low=low, high=high)
        assert weights.tolist() == [1.0, 1.0]
        assert is_outside.tolist() == [0.0, 0.0]


def test_importance_weights_make_samples_of_one_policy_speak_for_another() -> None:
    """Exact sums over a categorical: E_old[f] = E_sampled[w f], which truncation at a high bound leaves alone."""
    torch.manual_seed(1)
    old, sampled = torch.randn(2, 9, dtype=torch.float64).log_softmax(1)
    f = torch.randn(9, dtype=torch.float64)
    weights, is_outside = importance_weights(old - sampled, Importance.truncate, low=0.0, high=100.0)
    assert not is_outside.any()
    torch.testing.assert_close((sampled.exp() * weights * f).sum(), (old.exp() * f).sum(), rtol=1e-14, atol=0)
    assert (sampled.exp() * f).sum().sub((old.exp() * f).sum()).abs() > 0.05  # uncorrected, it is another number


@pytest.mark.parametrize(("noise", "apart", "bias", "left"), [(0.07, 0.05, 0.05, 1e-15), (0.3, 0.21, 0.22, 0.01)])
def test_what_an_engine_that_differs_costs(noise: float, apart: float, bias: float, left: float) -> None:
    """The expected policy gradient of a softmax, by exact sums: off by about the mean difference of the log-probs in
    nats, unless every token is corrected. Means over 500 draws: within a tenth."""
    torch.manual_seed(0)
    found = []
    for _ in range(500):
        logits, moved, advantages = torch.randn(3, 50, dtype=torch.float64)
        trainer = (2 * logits).log_softmax(0)
        engine = (2 * logits + noise * moved).log_softmax(0)
        weights, _ = importance_weights(trainer - engine, Importance.truncate, low=0.0, high=2.0)
        advantages = advantages - (trainer.exp() * advantages).sum()
        wanted, plain, corrected = (
            weight * advantages - trainer.exp() * (weight * advantages).sum()
            for weight in (trainer.exp(), engine.exp(), engine.exp() * weights)
        )
        distance = (engine.exp() * (engine - trainer).abs()).sum()
        errors = [(other - wanted).norm() / wanted.norm() for other in (plain, corrected)]
        found.append(torch.stack([distance, *errors]))
    mean_distance, mean_bias, mean_left = torch.stack(found).mean(0).tolist()
    assert (mean_distance, mean_bias) == pytest.approx((apart, bias), rel=0.1)
    assert mean_left < left


def test_a_token_that_was_all_but_impossible_has_a_finite_weight() -> None:
    far = torch.tensor([-1000.0, 1000.0])
    assert importance_weights(far, Importance.truncate, low=0.5, high=2.0)[0].tolist() == [0.5, 2.0]
    assert importance_weights(far, Importance.mask, low=0.5, high=2.0)[0].tolist() == [0, 0]
