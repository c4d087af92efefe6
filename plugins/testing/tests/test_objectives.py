"""The contract test of an objective passes slime's own, and finds what is wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slime.config.schema import Importance, ImportanceTokens, KlIn
from slime.errors import SlimeError
from slime_testing.objectives import check_objective
from tests.site import Site

WREINFORCE = Path(__file__).parents[3] / "tests/third_party/wreinforce"
MODEL = "pkg://slime_plugin_glm4/assets/glm4-tiny"
LEFT: dict[str, Any] = {
    "rejected_in_mean": False,
    "sequence_bound": 1.5,
    "importance": Importance.mask,
    "importance_tokens": ImportanceTokens.all,
    "importance_low": 0.8,
    "importance_high": 1.2,
    "kl_coef": 0.1,
}
"""Some tokens and some sequences are rejected, and leave the mean."""
WRONG = """
from dataclasses import dataclass
from slime.objective import Column, LossTerms, Metrics, TrainsOn

@dataclass
class Wrong:
    divides: bool = False
    lies: bool = False
    spreads: bool = False
    trains_on = TrainsOn.rollouts
    needs = (Column("advantages"),)

    def metrics(self, columns):
        return Metrics(("loss", "other") if self.lies else ("loss",))

    def loss(self, scores, inputs):
        advantages = inputs.columns["advantages"]
        loss = inputs.weighted(-scores[0] * (advantages.log() * 0 if self.spreads else advantages))
        if self.divides:
            loss = loss / inputs.loss_mask.sum().clamp(min=1)
        return LossTerms(loss, {"loss": loss})

@hookimpl
def slime_objectives():
    return {"wrong": Wrong}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "algo"),
    [
        ("grpo", {"kl_coef": 0.1, "entropy_coef": 0.01, "importance_low": 0.5}),
        ("grpo", {"kl_coef": 0.1, "kl_in": KlIn.reward, "sequence_bound": 1.5}),
        ("grpo", {"kl_coef": 0.1, "kl_unbiased": True, "opsm_bound": 0.1, "rollout_logprobs_as_old": True}),
        ("grpo", LEFT),
        ("sft", {}),
    ],
    ids=[
        "grpo",
        "grpo with the divergence in the reward",
        "grpo with the engine's log-probs",
        "grpo over what is left",
        "sft",
    ],
)
def test_the_objectives_of_slime_keep_the_contract(name: str, algo: dict[str, Any]) -> None:
    check_objective(name, MODEL, **algo)


@pytest.mark.slow
def test_one_of_a_third_party_keeps_it(site: Site) -> None:
    """At most 40 lines, installed and chosen by name. From its wheel it is tried in tests/third_party."""
    source = (WREINFORCE / "slime_wreinforce/__init__.py").read_text()
    assert len(source.splitlines()) <= 40
    files = {"pyproject.toml": (WREINFORCE / "pyproject.toml").read_text(), "slime_wreinforce/__init__.py": source}
    site.add_project(files)
    check_objective("w_reinforce", MODEL, options={"positive": 0.2}, sequence_bound=1.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("divides", "many micro-batches step 0 (loss|grad_norm)"),
        ("lies", r"loss gave means \['loss'\], and metrics\(\) says \['loss', 'other'\]"),
        ("spreads", "not finite: loss = nan"),
    ],
)
def test_a_wrong_one_is_found(site: Site, fault: str, told: str) -> None:
    site.add("slime-wrong", WRONG)
    with pytest.raises(AssertionError, match=told):
        check_objective("wrong", MODEL, options={fault: True})


BOLD = """
from dataclasses import dataclass
from slime.objective import LossTerms, Metrics, TrainsOn

@dataclass
class Bold:
    trains_on = TrainsOn.rollouts
    needs = ()

    def metrics(self, columns):
        return Metrics(("loss",))

    def loss(self, scores, inputs):
        loss = -inputs.weighted(scores[1])
        return LossTerms(loss, {"loss": loss})

@hookimpl
def slime_objectives():
    return {"bold": Bold}
"""
"""Of entropies alone."""


@pytest.mark.slow
def test_the_entropy_of_an_objective_has_its_gradient(site: Site) -> None:
    site.add("slime-bold", BOLD)
    check_objective("bold", MODEL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "told"),
    [
        ("scores[1]", "with the gradient of entropies step 0 (loss|grad_norm)"),
        ("scores.sum(0)", "with the gradient of entropies step 0 (loss|grad_norm)"),
    ],
    ids=["which is all of it", "which is a part of it"],
)
def test_one_that_says_that_it_needs_none_and_reads_them_is_found(site: Site, loss: str, told: str) -> None:
    lies = BOLD.replace("    needs = ()", "    needs = ()\n    entropy_gradient = False")
    site.add("slime-bold", lies.replace("scores[1]", loss))
    with pytest.raises(AssertionError, match=told):
        check_objective("bold", MODEL)


@pytest.mark.slow
def test_a_column_of_its_own_travels_through_packing_and_every_parallelism(site: Site) -> None:
    text = WRONG.replace('(Column("advantages"),)', '(Column("advantages"), Column("own", optional=True))')
    site.add("slime-wrong", text.replace("weighted(-scores[0]", 'weighted(-scores[0] * inputs.columns["own"]'))
    check_objective("wrong", MODEL)


def test_a_column_that_nobody_makes_is_refused(site: Site) -> None:
    site.add("slime-wrong", WRONG.replace('Column("advantages")', 'Column("advantage")'))
    with pytest.raises(SlimeError, match=r"reads column 'advantage', which rollouts do not have\. Did you mean 'ad"):
        check_objective("wrong", MODEL)


def test_options_are_typed(site: Site) -> None:
    site.add("slime-wrong", WRONG)
    with pytest.raises(SlimeError, match=r"algo\.options\.divides: .*It takes bool"):
        check_objective("wrong", MODEL, options={"divides": "maybe"})
