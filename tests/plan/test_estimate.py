"""Estimated seconds against training that was measured on H200s, and the arithmetic of the parts."""

from __future__ import annotations

from typing import Any

import pytest

from slime.plan.estimate import Layout, Trained, Work, generation_seconds, training_seconds, work_of
from slime.topology.layout import Grid
from tests.topology.test_memory import CPU_ADAM, CUT, FULL, PP2, TP2, plan_of

ONE, ALONE = Grid(1), {"num_layers": 12}


def seconds(words: list[str], grid: Grid, pack: int, sequence: int, packs: int, **layout: Any) -> dict[str, float]:
    plan = plan_of("+model=glm4-9b", *words, f"train.max_tokens_per_micro_batch={pack}")
    trained = Trained(plan.model, plan.weights, sequence)
    work = Work(packs * pack // sequence * grid.dp, sequence)
    cpu_adam = bool(plan.cfg.train.optimizer.get("optimizer_cpu_offload"))
    parts = training_seconds(work, trained, Layout(grid, plan.model, pack, 8, cpu_adam), plan.trainers)
    return {name: value for name, value in parts.items() if not name.startswith("moves")}  # the engines' part


@pytest.mark.parametrize(
    ("words", "grid", "pack", "sequence", "packs", "measured"),
    [
        (CUT, ONE, 8192, 2048, 4, 1.258),
        ([*CUT, *FULL], ONE, 8192, 2048, 4, 1.556),
        (CUT, ONE, 32768, 2048, 4, 4.752),
        ([*CUT, *FULL], ONE, 32768, 2048, 4, 5.935),
        ([*CUT, *CPU_ADAM], ONE, 8192, 2048, 4, 3.628),
        ([*CUT, *CPU_ADAM], ONE, 32768, 2048, 4, 8.354),
        (CUT, ONE, 32768, 32768, 4, 7.208),
        (TP2, Grid(2, tp=2), 4096, 1024, 16, 4.548),
        (TP2, Grid(2, tp=2), 8192, 1024, 16, 7.405),
        (PP2, Grid(2, pp=2), 4096, 1024, 16, 3.745),
        (PP2, Grid(2, pp=2), 8192, 1024, 16, 7.156),
    ],
)
def test_measured_steps(words: list[str], grid: Grid, pack: int, sequence: int, packs: int, measured: float) -> None:
    """`benchmarks/results/train-h200.md`. A fifth is what an order of layouts needs: those beside differ by more."""
    assert sum(seconds(words, grid, pack, sequence, packs).values()) == pytest.approx(measured, rel=0.2)


def test_parts_of_a_pipeline() -> None:
    """1F1B with m micro-batches and p stages idles p - 1 of m + p - 1 turns."""
    parts = seconds(PP2, Grid(2, pp=2), 8192, 1024, 16)
    busy = parts["compute"]
    assert parts["pipeline bubble"] == pytest.approx(busy / 16)
    assert "recomputation" not in parts
    again = seconds([*PP2, *FULL], Grid(2, pp=2), 8192, 1024, 16)
    assert again["recomputation"] == pytest.approx(again["compute"] / 3)


def test_flops_are_six_a_parameter_and_token() -> None:
    """As the papers count them: 6 a weight that a token meets. DeepSeek-R1 has 37 G active ones."""
    plan = plan_of("+model=deepseek-r1", "+cluster=h100x128")
    trained = Trained(plan.model, plan.weights, 0)
    embedding = 7168 * 129280
    assert (trained.stage(range(61), is_last=True) / 2 + embedding) / 1e9 == pytest.approx(37.6, abs=0.3)


def test_work_of_a_step() -> None:
    cfg = plan_of("+model=deepseek-r1", "+cluster=h100x128").cfg
    assert work_of(cfg) == Work(1024, (2048 + 32768) / 2, 4)


def test_engines_that_hold_more_sequences_need_fewer_turns() -> None:
    plan = plan_of("+model=deepseek-r1", "+cluster=h100x128")
    wide = plan_of("+model=deepseek-r1", "+cluster=h100x128", "rollout.sglang.dp_size=64")
    work = work_of(plan.cfg)
    narrow, broad = (generation_seconds(one.cfg, work, one.engines["default"]) for one in (plan, wide))
    assert narrow is not None
    assert broad is not None
    assert narrow > 2 * broad
