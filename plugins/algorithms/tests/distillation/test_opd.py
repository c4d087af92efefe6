"""The teacher's part of the loss against its formula in Python floats, exact expectations, and every layout."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from slime.algo.grpo import Grpo
from slime.algo.stages import Stage, estimator_of, objective_of
from slime.config.choices import Importance, ImportanceTokens, KlEstimator, KlIn
from slime.config.schema import AlgoConfig
from slime.objective import LossInputs, LossTerms, Source
from slime.types import ADVANTAGES, ROLLOUT_LOGPROBS
from slime_algorithms.distillation.opd import TEACHER_LOGPROBS, Opd
from slime_testing.estimators import check_estimator
from slime_testing.objectives import check_objective

MODEL = "pkg://slime_plugin_glm4/assets/glm4-tiny"
SHARED: dict[str, Any] = {
    "clip_low": 0.2,
    "clip_high": 0.3,
    "clip_dual": None,
    "entropy_coef": 0.0,
    "kl_coef": None,
    "kl_in": KlIn.loss,
    "kl_estimator": KlEstimator.k2,
    "kl_unbiased": False,
    "importance": Importance.truncate,
    "importance_tokens": ImportanceTokens.stale,
    "importance_low": 0.0,
    "importance_high": 2.0,
    "sequence_bound": None,
    "sequence_veto": None,
    "opsm_bound": None,
    "rejected_in_mean": True,
    "rollout_logprobs_as_old": False,
}
OPD, GRPO = Opd(teacher_coef=0.7, **SHARED), Grpo(**SHARED)
OLD = math.log(0.04)
GRID = [
    (x, advantage, gap)
    for x in (-3.0, -0.3, -0.1, 0.0, 0.05, 0.2, 1.5)
    for advantage in (-1.3, 0.0, 0.8)
    for gap in (-4.0, -0.2, 0.0, 0.6, 9.0)
]
"""log pi - log pi_old, advantage of the reward, log pi - log pi_teacher."""
EXACT = {"rtol": 1e-13, "atol": 1e-15}  # float64 on both sides; a few roundings apart


def double(values: Sequence[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def loss_of(objective: Grpo, logprobs: Tensor, old: Tensor, advantages: Tensor, teacher: Tensor) -> LossTerms:
    """Of loss tokens alone, each a sequence, whose losses are added up."""
    one = torch.ones_like(advantages)
    columns = {ADVANTAGES: advantages, ROLLOUT_LOGPROBS: old, "old_logprobs": old, TEACHER_LOGPROBS: teacher}
    scores = torch.stack([logprobs, torch.zeros_like(logprobs)])
    return objective.loss(scores, LossInputs(one, one, columns, sum_by_sequence=lambda x: x))


def by_hand(log_ratio: float, advantage: float, gap: float) -> float:
    """PPO's clipped loss with the advantage of the reward, less the teacher's 0.7 (log pi - log pi_teacher)."""
    ratio, judged = math.exp(log_ratio), advantage - 0.7 * gap
    return max(-ratio * judged, -min(max(ratio, 0.8), 1.3) * judged)


def test_the_loss_is_that_of_the_formula() -> None:
    log_ratio, advantages, gaps = double(GRID).T.contiguous()
    logprobs, old = OLD + log_ratio, torch.full_like(log_ratio, OLD)
    terms = loss_of(OPD, logprobs, old, advantages, logprobs - gaps)
    torch.testing.assert_close(terms.loss, double([by_hand(*each) for each in GRID]).sum(), **EXACT)
    torch.testing.assert_close(terms.token_sums["teacher_kl"], gaps.sum(), rtol=1e-12, atol=1e-12)
    assert {*terms.token_sums} == {*OPD.metrics([ADVANTAGES, ROLLOUT_LOGPROBS, "old_logprobs"]).token_sums}


def test_the_gradient_is_that_of_finite_differences_with_the_judgement_held() -> None:
    log_ratio, advantages, gaps = double(GRID).T.contiguous()
    logprobs = (OLD + log_ratio + 0.001).requires_grad_()  # away from the edges
    old, step = torch.full_like(log_ratio, OLD), 1e-6
    (found,) = torch.autograd.grad(loss_of(OPD, logprobs, old, advantages, logprobs.detach() - gaps).loss, logprobs)
    for number, (_, advantage, gap) in enumerate(GRID):
        x = float(log_ratio[number]) + 0.001
        wanted = (by_hand(x + step, advantage, gap) - by_hand(x - step, advantage, gap)) / (2 * step)
        assert found[number].item() == pytest.approx(wanted, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("moved", [0.0, 0.05], ids=["on policy", "after an optimizer step"])
def test_its_expectation_is_the_gradient_of_reward_and_reverse_divergence(moved: float) -> None:
    """Over seven outcomes, exactly; samples come from the old policy, whose ratios are inside the bounds."""
    logits = double([0.3, -1.2, 2.0, 0.0, -0.5, 1.1, -2.5])
    old = (logits + moved * double([1, -0.6, 0.4, 0, 0.8, -1, 0.2])).log_softmax(0)
    teacher = double([1.0, 0.2, -0.3, 0.0, 0.4, 2.1, -4.0]).log_softmax(0)
    rewards = double([1.0, 0.0, -0.7, 0.2, 0.0, 3.0, -1.0])
    logprobs = logits.requires_grad_().log_softmax(0)
    divergence = (logprobs.exp() * (logprobs - teacher)).sum()
    wanted = torch.autograd.grad(0.7 * divergence - (logprobs.exp() * rewards).sum(), logits, retain_graph=True)[0]
    found = torch.zeros_like(logits)
    for outcome in range(7):
        each = (values[outcome : outcome + 1] for values in (logprobs, old, rewards, teacher))
        loss = loss_of(OPD, *each).loss
        found += old[outcome].exp() * torch.autograd.grad(loss, logits, retain_graph=True)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


def test_a_teacher_that_agrees_adds_exactly_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    logprobs = -torch.rand(50, generator=generator)
    old, advantages = logprobs - 0.1, torch.randn(50, generator=generator)
    found = loss_of(OPD, logprobs, old, advantages, logprobs.clone())
    assert found.loss.item() == loss_of(GRPO, logprobs, old, advantages, logprobs).loss.item()
    assert found.token_sums["teacher_kl"].item() == 0


def test_the_teacher_is_asked_last_and_before_the_first_optimizer_step() -> None:
    stage = Stage("rl", OPD, num_steps=1)
    assert stage.passes(1) == [Source.teacher]
    assert stage.passes(2) == [Source.policy, Source.teacher]
    with_kl = Stage("rl", dataclasses.replace(OPD, kl_coef=0.1), num_steps=1)
    assert with_kl.passes(2) == [Source.policy, Source.reference, Source.teacher]


def test_rewards_count_beside_the_teacher_only_if_they_are_asked_for() -> None:
    algo = AlgoConfig(name="opd", advantage="none", options={"teacher_coef": 0.5})
    objective, estimator = objective_of(algo), estimator_of(algo)
    assert isinstance(objective, Opd)
    assert objective.teacher_coef == 0.5
    assert [column.name for column in objective.needs if column.source is Source.teacher] == [TEACHER_LOGPROBS]
    assert estimator.min_samples == 1
    with pytest.raises(AssertionError, match="'none' teaches nothing"):  # in which alone it is unlike other estimators
        check_estimator("none")


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan])
def test_a_teacher_without_weight_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        dataclasses.replace(OPD, teacher_coef=wrong)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_contract() -> None:
    check_objective("opd", MODEL, options={"teacher_coef": 0.5}, kl_coef=0.1)
