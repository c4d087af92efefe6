"""Objectives that are functions or classes of a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slime.errors import SlimeError
from slime.functions.objectives import own_objective
from slime.objective import LossInputs, Source
from slime_testing.objectives import check_objective

FILE = """
from slime.objective import Column, LossTerms, Metrics, TrainsOn

def loss(logprobs, old_logprobs, advantages, bound=0.28):
    ratio = (logprobs - old_logprobs).exp()
    return -(ratio.clamp(max=1 + bound) * advantages)

def bonus(logprobs, advantages, entropy):
    return -logprobs * advantages - 0.01 * entropy

class Reinforce:
    trains_on = TrainsOn.rollouts
    needs = (Column("advantages"),)
    entropy_gradient = False

    def metrics(self, columns):
        return Metrics(means=("loss",))

    def loss(self, scores, inputs):
        loss = inputs.weighted(-scores[0] * inputs.columns["advantages"])
        return LossTerms(loss, {"loss": loss})

def mean(logprobs, advantages):
    return -(logprobs * advantages).mean()

def breaks(logprobs, advantages):
    return logprobs @ advantages.reshape(2, 2)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my.py"
    path.write_text(FILE)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["loss", "bonus", "Reinforce"])
def test_a_function_is_a_loss_in_every_layout(file: Path, name: str) -> None:
    check_objective("function", "pkg://slime_plugin_glm4/assets/glm4-tiny", options={"path": f"{file}:{name}"})


def inputs() -> LossInputs:
    weights, mask = torch.tensor([0.5, 0.5, 0.0, 0.0]), torch.tensor([1.0, 1.0, 0.0, 0.0])
    columns = {"advantages": torch.tensor([1.0, -2.0, 0.0, 0.0]), "old_logprobs": torch.tensor([-1.0, -2.0, 0.0, 0.0])}
    return LossInputs(mask, weights, columns, lambda values: values)


def test_the_loss_of_each_token_is_weighted(file: Path) -> None:
    """By hand: ratios e^0.1 and e^0.5, of which the bound cuts the second at 1.28."""
    objective = own_objective(path=f"{file}:loss")
    assert {column.name: column.source for column in objective.needs} == {
        "advantages": Source.rollout,
        "old_logprobs": Source.policy,
    }
    scores = torch.tensor([[-0.9, -1.5, 0.0, 0.0], [1.0, 3.0, 0.0, 0.0]])
    terms = objective.loss(scores, inputs())
    assert terms.loss.item() == pytest.approx(0.5 * -1.1051709180756477 + 0.5 * 2 * 1.28, rel=1e-6)
    assert terms.token_sums["entropy"].item() == 4.0
    assert {"loss"} == {*objective.metrics(()).means} == {*terms.means}


def test_what_is_no_loss_is_told(file: Path) -> None:
    scores = torch.zeros(2, 4)
    with pytest.raises(
        SlimeError, match=r"my.py:mean returned tensor.*, not a tensor of \[4\], the loss of each token"
    ):
        own_objective(path=f"{file}:mean").loss(scores, inputs())
    with pytest.raises(SlimeError, match=r"algo.path: .*my.py:breaks raised RuntimeError: .* \(my.py:27\)"):
        own_objective(path=f"{file}:breaks").loss(scores, inputs())
    file.write_text("def loss(logprobs, advantage):\n    return logprobs\n")
    with pytest.raises(SlimeError, match=r"takes 'advantage', which nobody gives it.*Did you mean 'advantages'"):
        own_objective(path=f"{file}:loss")
