"""The gradient of GRPO's whole loss against finite differences, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from slime.algo.grpo import Grpo
from slime.algo.stages import objective_of
from slime.config.choices import Importance, ImportanceTokens, KlEstimator
from slime.config.schema import AlgoConfig
from slime.objective import LossInputs
from slime.types import ADVANTAGES, ROLLOUT_LOGPROBS

LENGTHS = [3, 1, 4, 2, 5]


def drawn() -> tuple[Tensor, LossInputs]:
    """[2, 15] log-probs and entropies, with gradient, and five sequences in which every fourth token is masked."""
    generator = torch.Generator().manual_seed(0)
    count, sizes = sum(LENGTHS), torch.tensor(LENGTHS)

    def normal(scale: float) -> Tensor:
        return scale * torch.randn(count, generator=generator, dtype=torch.float64)

    def sums(values: Tensor) -> Tensor:
        return torch.stack([part.sum() for part in values.split(LENGTHS)]).repeat_interleave(sizes)

    mask = (torch.arange(count) % 4 != 3).double()
    old = normal(1.0) - 2
    columns = {"old_logprobs": old, ROLLOUT_LOGPROBS: old + normal(0.5), "ref_logprobs": old + normal(0.3)}
    columns[ADVANTAGES] = torch.randn(5, generator=generator, dtype=torch.float64).repeat_interleave(sizes)
    scores = torch.stack([old + normal(0.3), 1 + normal(0.2)])
    weights = mask * torch.rand(count, generator=generator, dtype=torch.float64)
    inputs = LossInputs(mask, weights, {name: values * mask for name, values in columns.items()}, sums)
    return (scores * mask).requires_grad_(), inputs


@pytest.mark.parametrize(
    "algo",
    [
        {"clip_dual": None},
        {"clip_dual": 1.05},
        {"kl_coef": 0.3, "kl_estimator": KlEstimator.k3, "kl_unbiased": True, "entropy_coef": 0.1},
        {"kl_coef": 0.3, "kl_estimator": KlEstimator.k2, "sequence_bound": 1.1, "importance": Importance.mask},
        {"kl_coef": 0.3, "kl_estimator": KlEstimator.k1, "kl_unbiased": True, "rollout_logprobs_as_old": True},
    ],
    ids=lambda algo: "-".join(algo),
)
def test_the_gradient_is_the_slope_of_the_loss(algo: dict[str, Any]) -> None:
    """Central differences of 1e-6: of a loss of order 1 they are good to 1e-10, and no ratio lies that near to an edge
    of a clip. Some tokens are clipped, and some are not."""
    grpo = objective_of(AlgoConfig(clip_low=0.1, clip_high=0.15, importance_tokens=ImportanceTokens.all, **algo))
    assert isinstance(grpo, Grpo)
    scores, inputs = drawn()
    torch.autograd.gradcheck(lambda x: grpo.loss(x, inputs).loss, scores, eps=1e-6, atol=1e-8, rtol=1e-7)
    terms = grpo.loss(scores, inputs)
    assert 0 < terms.token_sums["clip_fraction"] < inputs.loss_mask.sum()
    assert torch.autograd.grad(terms.loss, scores)[0][:, inputs.loss_mask == 0].eq(0).all()
