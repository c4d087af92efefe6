"""What an objective is given of a micro-batch, and what extra losses add to it, against formulas in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from slime.objective import Column, LossInputs, LossTerms, Metrics, Source, TrainsOn

IDS, TOP = Column("ids", Source.teacher, width=2, ids=True), Column("top", Source.teacher, width=2)
MASK = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
OUT = MASK == 0


class Compares:
    """Of every place that it is given, masked or not, how far the model is from each column."""

    trains_on = TrainsOn.rollouts
    needs = (Column("old", Source.policy), Column("reference", Source.reference), IDS, TOP)

    def metrics(self, columns: Any) -> Metrics:
        return Metrics(means=("loss",))

    def loss(self, scores: Tensor, inputs: LossInputs) -> LossTerms:
        old, reference, top = (inputs.columns[name] for name in ("old", "reference", "top"))
        far = (scores[0] - reference).square() + (scores[0] - 2 * old).square() + scores[1].square()
        loss = (far + (inputs.logprobs_of["ids"] - top * inputs.columns["ids"]).square().sum(1)).sum()
        return LossTerms(loss, {"loss": loss})


def test_what_stands_at_masked_places_reaches_no_loss_and_no_gradient() -> None:
    """Neither scores nor columns that a pass before has made. NaN would stay NaN, whatever weight it had."""
    from slime_megatron.train.local_batch import LocalMicroBatch
    from slime_megatron.train.objective import StepLoss

    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(4, 5, generator=generator, dtype=torch.float64).masked_fill(OUT, torch.nan).requires_grad_()
    reference = torch.randn(5, generator=generator, dtype=torch.float64).masked_fill(OUT, torch.nan)
    top = torch.randn(5, 2, generator=generator, dtype=torch.float64).masked_fill(OUT[:, None], torch.nan)
    ids = torch.randint(1, 9, (5, 2), generator=generator).int()
    none: Any = None
    micro = LocalMicroBatch(none, none, none, none, MASK, MASK, {}, torch.tensor([5]), None)
    scored = {"reference": [reference], "ids": [ids], "top": [top]}
    loss = StepLoss(Compares(), [micro], scored, is_first=True)
    asked = loss.others(0)
    assert asked is not None
    assert asked.t().tolist() == [row if kept else [0, 0] for row, kept in zip(ids.tolist(), MASK, strict=True)]
    found = loss(scores, 0).loss
    kept = scores.detach()[:, ~OUT].requires_grad_()
    wanted = (kept[0] - reference[~OUT]) ** 2 + (kept[0] - 2 * kept[0].detach()) ** 2 + kept[1] ** 2
    wanted = (wanted + ((kept[2:] - (top * ids)[~OUT].t()) ** 2).sum(0)).sum()
    torch.testing.assert_close(found, wanted)
    [gradient], [of_kept] = torch.autograd.grad(found, scores), torch.autograd.grad(wanted, kept)
    torch.testing.assert_close(gradient[:, ~OUT], of_kept)
    assert (gradient[:, OUT] == 0).all()


class Squares:
    """An extra loss: the sum of a row's squares, which the pack multiplies."""

    lookahead = 0

    def __init__(self, name: str) -> None:
        self.name = name

    def prepare(self, packed: Any, micro: Any, local: Any) -> None:
        """It reads nothing."""

    def of(self, row: Tensor, packed: Any) -> Tensor:
        return row.square().sum() * packed


def test_extra_losses_are_added_each_with_its_own_weight() -> None:
    from slime_megatron.train.objective import with_extra_losses

    def main(scores: Tensor, number: int) -> LossTerms:
        loss = -scores[0].sum()
        return LossTerms(loss, {"loss": loss})

    scores = torch.tensor([[1.0, -2.0], [9.0, 9.0], [3.0, 1.0], [2.0, -2.0]], dtype=torch.float64, requires_grad=True)
    packs: Any = [1.0, 0.5]
    terms = with_extra_losses(main, [(Squares("one"), 0.25), (Squares("other"), 3.0)], packs)(scores, 1)
    assert {name: float(mean) for name, mean in terms.means.items()} == {"loss": 1.0, "one": 5.0, "other": 4.0}
    assert float(terms.loss) == 1.0 + 0.25 * 5.0 + 3.0 * 4.0
    [gradient] = torch.autograd.grad(terms.loss, scores)
    assert gradient.tolist() == [[-1.0, -1.0], [0.0, 0.0], [0.25 * 3.0, 0.25 * 1.0], [3.0 * 2.0, 3.0 * -2.0]]
