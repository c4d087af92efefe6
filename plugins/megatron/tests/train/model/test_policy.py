"""The output head, asked for by a layer of its own, against the formula in float64."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from slime_testing.ranks import Rank, run_ranks

from ..one_rank import HF, start, write_model


class Scored(NamedTuple):
    """Log-probs of labels, and the gradients of their weighted sum; that of the head None where it has none."""

    logprobs: Tensor
    of_hidden: Tensor
    of_head: Tensor | None


def given() -> tuple[Tensor, Tensor, Tensor]:
    """hidden [7, 1, hidden_size], labels [1, 7], factors [7] of the sum."""
    generator = torch.Generator().manual_seed(0)
    hidden = 4 * torch.randn(7, 1, HF["hidden_size"], generator=generator)
    return hidden, torch.randint(HF["vocab_size"], (1, 7), generator=generator), torch.randn(7, generator=generator)


def scored(rank: Rank, folder: Path) -> dict[bool, Scored]:
    """With the head and without."""
    module, found = start(rank, folder).model.modules[0], {}
    for with_head in (True, False):
        hidden, labels, factors = given()
        hidden.requires_grad_()
        logprobs = module.score(hidden, labels, with_head=with_head)[0]
        wanted = [hidden, module.output_layer.weight]
        gradients = torch.autograd.grad((factors * logprobs).sum(), wanted, allow_unused=True)
        found[with_head] = Scored(logprobs.detach(), *gradients)
    return found


def by_the_formula() -> Scored:
    """log softmax(W h) at the label, with W of transformers' own model."""
    from slime_testing.models import random_model

    weight = random_model(HF).lm_head.weight.detach().double().requires_grad_()
    hidden, labels, factors = given()
    rows = hidden.double().requires_grad_()
    logprobs = (rows[:, 0] @ weight.t()).log_softmax(1).gather(1, labels.t())[:, 0]
    return Scored(logprobs.detach(), *torch.autograd.grad((factors * logprobs).sum(), [rows, weight]))


def test_without_the_head_the_hidden_states_alone_get_their_gradient(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """fp32 against float64: sums of 32 products of order 1."""
    [found], wanted = run_ranks(scored, 1, write_model(tmp_path_factory)), by_the_formula()
    for each in found.values():
        torch.testing.assert_close(each.logprobs.double(), wanted.logprobs, rtol=0, atol=1e-5)
        torch.testing.assert_close(each.of_hidden.double(), wanted.of_hidden, rtol=0, atol=1e-5)
    assert found[False].of_head is None
    assert found[True].of_head is not None
    torch.testing.assert_close(found[True].of_head.double(), wanted.of_head, rtol=0, atol=1e-5)
