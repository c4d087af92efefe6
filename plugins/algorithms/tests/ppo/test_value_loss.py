"""The loss of a critic against its formula in Python floats, and its gradient against finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from slime.estimator import RETURNS, VALUES
from slime.objective import LossInputs
from slime_algorithms.ppo.value_loss import ValueLoss

NUM_TOKENS = 40


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, LossInputs]:
    """Values on both sides of the clip and of their returns, a third of them masked."""
    generator = torch.Generator().manual_seed(0)
    values, old, returns = torch.randn(3, NUM_TOKENS, generator=generator, dtype=torch.float64)
    mask = (torch.rand(NUM_TOKENS, generator=generator) < 0.67).double()
    weights = mask * torch.rand(NUM_TOKENS, generator=generator, dtype=torch.float64)
    old = values + 0.5 * (old - values)
    columns = {VALUES: (old * mask).to(dtype), RETURNS: (returns * mask).to(dtype)}
    given = LossInputs(mask.to(dtype), weights.to(dtype), columns, sum_by_sequence=lambda x: x)
    return (values * mask)[None].to(dtype), given


def formula(values: list[float], given: LossInputs, clip: float | None) -> float:
    """1/2 sum of w max((V - G)^2, (clip(V, V_old - c, V_old + c) - G)^2)."""
    terms = []
    columns = (given.loss_weights, given.columns[VALUES], given.columns[RETURNS])
    for value, weight, old, wanted in zip(values, *(x.tolist() for x in columns), strict=True):
        near = value if clip is None else min(max(value, old - clip), old + clip)
        terms.append(0.5 * weight * max((value - wanted) ** 2, (near - wanted) ** 2))
    return math.fsum(terms)


@pytest.mark.parametrize("clip", [None, 0.05, 0.3, 100.0])
def test_the_loss_is_the_formula(clip: float | None) -> None:
    values, given = inputs()
    terms = ValueLoss(clip).loss(values, given)
    assert terms.loss.item() == pytest.approx(formula(values[0].tolist(), given, clip), rel=1e-13)
    assert terms.means["loss"].item() == terms.loss.item()


@pytest.mark.parametrize("clip", [None, 0.3])
def test_the_gradient_is_that_of_finite_differences(clip: float | None) -> None:
    values, given = inputs()
    values.requires_grad_()
    ValueLoss(clip).loss(values, given).loss.backward()
    assert values.grad is not None
    step, flat = 1e-6, values[0].tolist()
    for token in range(NUM_TOKENS):
        moved = [[*flat[:token], flat[token] + sign * step, *flat[token + 1 :]] for sign in (1, -1)]
        high, low = (formula(each, given, clip) for each in moved)
        # Quadratic between the clip's edges, near which no value lies: only float64's rounding is left.
        assert values.grad[0, token].item() == pytest.approx((high - low) / (2 * step), abs=1e-8)


def test_the_clip_is_what_it_counts() -> None:
    values, given = inputs()
    values.requires_grad_()
    terms = ValueLoss(0.3).loss(values, given)
    terms.loss.backward()
    assert values.grad is not None
    without = ((values.grad[0] == 0) & (given.loss_mask == 1)).sum().item()
    assert 0 < without < given.loss_mask.sum().item()
    assert terms.token_sums["clip_fraction"].item() == without
    assert terms.token_sums["value_mean"].item() == pytest.approx(values.sum().item(), rel=1e-13)
    assert terms.token_sums["return_mean"].item() == pytest.approx(given.columns[RETURNS].sum().item(), rel=1e-13)


def test_what_comes_is_what_is_declared() -> None:
    values, given = inputs(torch.float32)
    loss = ValueLoss(0.2)
    terms, names = loss.loss(values, given), loss.metrics([VALUES, RETURNS])
    assert (set(terms.means), set(terms.token_sums)) == (set(names.means), set(names.token_sums))
