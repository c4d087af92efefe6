"""Sums over sequences, and their gradients, against PyTorch's own of a loop."""

from __future__ import annotations

import torch


def test_a_token_answers_for_the_sums_of_its_whole_sequence() -> None:
    from slime_megatron.train.sequence_sums import sum_by_sequence

    torch.manual_seed(0)
    values, weights = torch.randn(2, 7, dtype=torch.float64)
    sizes, values = [3, 0, 4], values.requires_grad_()
    looped = torch.cat([part.sum().expand(len(part)) for part in values.split(sizes)])
    found = sum_by_sequence(values, torch.tensor(sizes))
    torch.testing.assert_close(found, looped)
    gradients = [torch.autograd.grad((sums * weights).sum(), values)[0] for sums in (found, looped)]
    torch.testing.assert_close(*gradients)
