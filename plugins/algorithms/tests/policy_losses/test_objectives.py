"""The surrogates against the papers' formulas in Python floats (float64), and against exact expectations."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from slime.algo.policy_gradient import PolicyGradient
from slime.config.choices import Importance, KlEstimator, KlIn
from slime.objective import LossInputs
from slime.types import ADVANTAGES, ROLLOUT_LOGPROBS
from slime_algorithms.policy_losses.objectives import Cispo, Dppo, Gspo, Sapo
from slime_testing.objectives import check_objective

MODEL = "pkg://slime_plugin_glm4/assets/glm4-tiny"
SHARED: dict[str, Any] = {
    "entropy_coef": 0.0,
    "kl_coef": None,
    "kl_in": KlIn.loss,
    "kl_estimator": KlEstimator.k2,
    "kl_unbiased": False,
    "importance": Importance.truncate,
    "importance_tokens": None,
    "importance_low": 0.0,
    "importance_high": 2.0,
    "sequence_bound": None,
    "sequence_veto": None,
    "opsm_bound": None,
    "rejected_in_mean": True,
    "rollout_logprobs_as_old": False,
}
GSPO = Gspo(clip_low=0.2, clip_high=0.3, **SHARED)
CISPO = Cispo(clip_high=0.5, **SHARED)
SAPO = Sapo(tau_positive=1.0, tau_negative=1.05, **SHARED)
DPPO = Dppo(bound=0.2, pull=0.0, **SHARED)
ALL = [GSPO, CISPO, SAPO, DPPO]
LOG_RATIOS = [-3.0, -0.5, -0.1, 0.0, 0.05, 0.3, 1.5, 3.0]
GRID = [(x, advantage) for x in LOG_RATIOS for advantage in (-2.0, -0.3, 0.0, 0.7, 1.9)]
EXACT = {"rtol": 1e-13, "atol": 1e-15}  # float64 on both sides; a few roundings apart
name_of = pytest.mark.parametrize("objective", ALL, ids=lambda objective: type(objective).__name__)


def double(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def inputs_of(advantages: Tensor, engine: Tensor, lengths: Sequence[int] | None = None) -> LossInputs:
    """Of loss tokens alone, which are sequences of one token each unless `lengths` says otherwise."""
    sizes = torch.tensor(lengths or [1] * len(advantages))

    def sums(values: Tensor) -> Tensor:
        return torch.stack([part.sum() for part in values.split(sizes.tolist())]).repeat_interleave(sizes)

    one = torch.ones_like(advantages)
    return LossInputs(one, one, {ADVANTAGES: advantages, ROLLOUT_LOGPROBS: engine}, sum_by_sequence=sums)


def grid() -> tuple[Tensor, Tensor, LossInputs]:
    """Log-probs of the policy, with gradient, and before; the engine's are the latter."""
    log_ratio, advantages = double(GRID).T.contiguous()
    old = torch.full_like(log_ratio, math.log(0.04))
    return (old + log_ratio).requires_grad_(), old, inputs_of(advantages, old)


def clipped(ratio: float, advantage: float) -> float:
    return max(-ratio * advantage, -min(max(ratio, 0.8), 1.3) * advantage)


def soft(ratio: float, advantage: float) -> float:
    tau = 1.0 if advantage > 0 else 1.05
    return -4 / tau / (1 + math.exp(-tau * (ratio - 1))) * advantage


def masked(ratio: float, advantage: float) -> float:
    moved = 0.04 * (ratio - 1)
    return 0.0 if (moved > 0.2 and advantage > 0) or (moved < -0.2 and advantage < 0) else -ratio * advantage


def weighted(ratio: float, advantage: float) -> float:
    return -min(ratio, 1.5) * advantage * (math.log(0.04) + math.log(ratio))


FORMULAS = {GSPO: clipped, CISPO: weighted, SAPO: soft, DPPO: masked}


@name_of
def test_the_loss_is_the_papers_formula(objective: PolicyGradient) -> None:
    logprobs, old, inputs = grid()
    wanted = double([FORMULAS[objective](math.exp(x), advantage) for x, advantage in GRID])
    torch.testing.assert_close(objective.surrogate(logprobs, old, inputs).loss, wanted, **EXACT)


@pytest.mark.parametrize("objective", [SAPO, DPPO], ids=lambda objective: type(objective).__name__)
def test_the_gradient_is_the_loss_s_own(objective: PolicyGradient) -> None:
    """Those whose loss is a function of the log-prob, without parts that are held constant."""
    logprobs, old, inputs = grid()
    logprobs = (logprobs + 0.001).detach().requires_grad_()  # away from the edges
    torch.autograd.gradcheck(lambda x: objective.surrogate(x, old, inputs).loss, logprobs)


def test_the_gradient_of_cispo_is_the_slope_with_its_weight_held() -> None:
    """The old policy moves along with the new one, so that r stays; some weights are bounded."""
    logprobs, old, inputs = grid()
    at = logprobs.detach().clone()

    def loss(x: Tensor) -> Tensor:
        return CISPO.surrogate(x, old + (x - at).detach(), inputs).loss

    assert 0 < CISPO.surrogate(logprobs, old, inputs).seen["clip_fraction"].sum() < len(at)
    torch.autograd.gradcheck(loss, logprobs, eps=1e-6, atol=1e-8, rtol=1e-7)


@name_of
def test_on_policy_the_expected_gradient_is_that_of_the_expected_reward(objective: PolicyGradient) -> None:
    """Over seven outcomes, exactly. All bounds are far from a ratio of 1."""
    logits = double([0.3, -1.2, 2.0, 0.0, -0.5, 1.1, -2.5]).requires_grad_()
    rewards = double([1.0, 0.0, -0.7, 0.2, 0.0, 3.0, -1.0])
    logprobs = logits.log_softmax(0)
    (wanted,) = torch.autograd.grad(-(logprobs.exp() * rewards).sum(), logits, retain_graph=True)
    old = logprobs.detach()
    losses = objective.surrogate(logprobs, old, inputs_of(rewards, old)).loss
    (found,) = torch.autograd.grad((old.exp() * losses).sum(), logits)
    torch.testing.assert_close(found, wanted, **EXACT)


@name_of
def test_off_policy_the_expectation_is_right_inside_the_bounds(objective: PolicyGradient) -> None:
    """Samples come from the old policy; each ratio is within 10 percent of 1. SAPO's gate is smooth, so it is only
    near: its slope falls by tau^2 (r - 1)^2 / 4."""
    logits = double([0.3, -1.2, 2.0, 0.0, -0.5, 1.1, -2.5])
    old = (logits + double([0.05, -0.03, 0.02, 0.0, 0.04, -0.05, 0.01])).log_softmax(0)
    logits.requires_grad_()
    rewards = double([1.0, 0.0, -0.7, 0.2, 0.0, 3.0, -1.0])
    logprobs = logits.log_softmax(0)
    (wanted,) = torch.autograd.grad(-(logprobs.exp() * rewards).sum(), logits, retain_graph=True)
    losses = objective.surrogate(logprobs, old, inputs_of(rewards, old)).loss
    (found,) = torch.autograd.grad((old.exp() * losses).sum(), logits)
    torch.testing.assert_close(found, wanted, **({"rtol": 0, "atol": 2e-3} if objective is SAPO else EXACT))


def test_gspo_for_tokens_is_gspo_for_sequences() -> None:
    """Equation 5 with its own gradient, of whole sequences; a mean over each one's tokens."""
    lengths = [1, 4, 2, 5]
    drawn = torch.Generator().manual_seed(0)
    old = -torch.rand(sum(lengths), generator=drawn, dtype=torch.float64)
    logprobs = (old + 0.4 * torch.randn(len(old), generator=drawn, dtype=torch.float64)).requires_grad_()
    of_sequence = double([1.0, -2.0, 0.5, -0.1])
    sizes = torch.tensor(lengths)
    ratios = torch.stack([part.mean() for part in (logprobs - old).split(lengths)]).exp()
    assert not all(0.8 < ratio < 1.3 for ratio in ratios.tolist()), "some sequence is clipped"
    bounded = ratios.clamp(0.8, 1.3)
    wanted = torch.maximum(-ratios * of_sequence, -bounded * of_sequence)
    (slope,) = torch.autograd.grad(wanted.sum(), logprobs)
    inputs = inputs_of(of_sequence.repeat_interleave(sizes), old, lengths)
    found = GSPO.surrogate(logprobs, old, inputs)
    losses = torch.stack([part.mean() for part in found.loss.split(lengths)])
    torch.testing.assert_close(losses, wanted, **EXACT)
    (gradient,) = torch.autograd.grad(losses.sum(), logprobs)
    torch.testing.assert_close(gradient, slope, **EXACT)
    assert [len(set(part.tolist())) for part in found.seen["clip_fraction"].split(lengths)] == [1, 1, 1, 1]


def test_no_token_of_cispo_loses_its_gradient() -> None:
    logprobs, old, inputs = grid()
    (gradient,) = torch.autograd.grad(CISPO.surrogate(logprobs, old, inputs).loss.sum(), logprobs)
    assert ((gradient != 0) == (inputs.columns[ADVANTAGES] != 0)).all()


def test_dppo_bounds_probabilities_and_pulls_to_the_engine() -> None:
    """A rare token may grow fivefold, a likely one by half only."""
    old = double([0.04, 0.6, 0.6, 0.6]).log()
    logprobs = double([0.2, 0.9, 0.3, 0.3]).log().requires_grad_()
    advantages = double([1.0, 1.0, -1.0, 1.0])
    loss, seen = Dppo(bound=0.2, pull=0.01, **SHARED).surrogate(logprobs, old, inputs_of(advantages, old))
    assert seen["masked_fraction"].tolist() == [0, 1, 1, 0]
    ratio = (logprobs.detach() - old).exp()
    wanted = -ratio * advantages * double([1, 0, 0, 1]) + 0.01 * ratio.log().square()
    torch.testing.assert_close(loss.detach(), wanted, **EXACT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "algo"),
    [
        ("gspo", {"clip_low": 3e-4, "clip_high": 4e-4, "kl_coef": 0.1}),
        ("cispo", {"clip_high": 2.0}),
        ("sapo", {"options": {"tau_positive": 1.0}}),
        ("dppo", {"rollout_logprobs_as_old": True, "options": {"pull": 0.01}}),
    ],
    ids=["gspo", "cispo", "sapo", "dppo"],
)
def test_they_keep_the_contract(name: str, algo: dict[str, Any]) -> None:
    check_objective(name, MODEL, **algo)
