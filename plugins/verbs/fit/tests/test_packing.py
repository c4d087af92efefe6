"""Packs of many layouts, and what an estimate makes of those that are not even."""

from __future__ import annotations

import dataclasses
import math

import pytest

from plugins.estimates.memory.tests.test_trainer import plan_of
from slime.layout import Grid
from slime.plan.flops import ForwardFlops
from slime.plan.packs import lengths_of, packs_of
from slime_plugin_fit.estimate import Layout, training_seconds, work_of
from slime_plugin_fit.packing import Packing

MODEL = {"num_layers": 8}


def test_layouts_that_pack_alike_share_packs() -> None:
    packing = Packing([[1000] * 40], math.inf)
    one = packing.of(Grid(8, pp=2), MODEL, 2048)
    assert one == packs_of(packing.lengths, Grid(8, pp=2), 1, 2048, math.inf)
    assert packing.of(Grid(16, pp=4), MODEL, 2048) is one
    interleaved = {**MODEL, "virtual_pipeline_model_parallel_size": 2}
    apart = packing.of(Grid(16, pp=4, vpp=2), interleaved, 2048)
    assert (one.a_rank, apart.a_rank) == (5, 8)


def test_a_cap_below_the_longest_sequence_is_raised_to_it() -> None:
    """A config that is refused for it is estimated too, beside those that are proposed."""
    packing = Packing(lengths_of(1000, 64), math.inf)
    assert packing.of(Grid(2, tp=2), MODEL, 100) is packing.of(Grid(2, tp=2), MODEL, 1000)


@pytest.mark.parametrize(("shares_experts", "waits_for"), [(True, "over_rounds"), (False, "over_ranks")])
def test_ranks_that_share_experts_wait_at_every_micro_batch(shares_experts: bool, waits_for: str) -> None:
    plan = plan_of("+model=glm4.7-flash", "+cluster=h100x8")
    grid = Grid(8, ep=8 if shares_experts else 1)
    work = work_of(plan.cfg)
    packs = Packing(work.lengths, math.inf).of(grid, plan.model, 2 * plan.tokens)
    packs = packs._replace(over_ranks=1.01, over_rounds=1.05)
    layout = Layout(grid, plan.model, packs, 8, cpu_adam=False)
    trained = ForwardFlops(plan.model, plan.weights, work.tokens)
    parts = training_seconds(work, trained, layout, plan.trainers)
    of_packs = ("compute", "recomputation", "log-probs", "expert parallel")
    busy = sum(parts.get(name, 0.0) for name in of_packs)
    assert parts["uneven packs"] == pytest.approx((getattr(packs, waits_for) - 1) * busy)
    even = dataclasses.replace(layout, packs=packs._replace(over_ranks=1.0, over_rounds=1.0))
    assert "uneven packs" not in training_seconds(work, trained, even, plan.trainers)
