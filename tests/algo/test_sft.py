"""Supervised fine-tuning against torch's cross entropy, and its gradient against finite differences, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from slime.algo.sft import Sft
from slime.objective import LossInputs


def inputs_of(mask: Tensor) -> LossInputs:
    """The mean over loss tokens."""
    return LossInputs(mask, mask / mask.sum(), {}, lambda values: values)


def test_the_gradient_is_the_slope_of_the_mean_of_the_response() -> None:
    """From the logits on: central differences of 1e-6 of a loss of order 1 are good to 1e-10."""
    torch.manual_seed(0)
    logits, labels = torch.randn(9, 7, dtype=torch.float64, requires_grad=True), torch.randint(7, (9,))
    mask = torch.tensor([0, 0, 1, 1, 1, 0, 1, 1, 0]).double()
    inputs = inputs_of(mask)

    def loss(logits: Tensor) -> Tensor:
        logprobs = logits.log_softmax(1)
        entropy = -(logprobs.exp() * logprobs).sum(1)
        scores = torch.stack([logprobs[torch.arange(9), labels], entropy]) * mask
        return Sft().loss(scores, inputs).loss

    wanted = torch.nn.functional.cross_entropy(logits[mask == 1], labels[mask == 1])
    torch.testing.assert_close(loss(logits), wanted, rtol=1e-14, atol=0)
    torch.autograd.gradcheck(loss, logits, eps=1e-6, atol=1e-9, rtol=1e-7)
    (found,) = torch.autograd.grad(loss(logits), logits)
    assert found[mask == 0].eq(0).all()
    assert found[mask == 1].ne(0).all()
