"""What the plan foretells of packing: against the packer, many other steps, and a simulated pipeline."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest

from slime.compose.compose import examine
from slime.config.schema import LossMean
from slime.layout import Grid
from slime.plan.document import document
from slime.plan.packs import foretold, lengths_of, packs_of
from slime.plugins import load
from slime.train.packing import pack
from slime.types import Batch, TrainSample

ATTENTION = 24576.0


def packed(lengths: list[int], grid: Grid, cap: int, multiple: int = 1) -> Batch:
    samples = [TrainSample(np.zeros(n, np.int64), np.ones(n - 1, np.float32)) for n in lengths]
    [batch] = pack(
        samples,
        num_dp=grid.dp,
        align=grid.packing_align,
        max_tokens=cap,
        micro_batch_multiple=multiple,
        loss_mean=LossMean.token,
        attention_length=ATTENTION,
    )
    return batch


def work_of(batch: Batch, lengths: list[int]) -> np.ndarray:
    """[ranks, rounds]"""
    ids = [[micro.sample_ids for micro in of_rank] for of_rank in batch.micro_batches]
    return np.asarray([[sum(lengths[i] + lengths[i] ** 2 / ATTENTION for i in m) for m in of] for of in ids])


def test_lengths_are_even_and_the_same_every_time() -> None:
    first, second = steps = lengths_of(1000, 500)
    assert steps == lengths_of(1000, 500)
    assert np.mean(steps) == (2 + 1000) / 2
    assert (min(map(min, steps)), max(map(max, steps))) >= (2, 990)
    assert max(map(max, steps)) <= 1000
    shares, _ = np.histogram(first, bins=4, range=(2, 1000))
    assert max(shares) < 1.2 * min(shares)
    assert sorted(second) != sorted(first)


@pytest.mark.parametrize("grid", [Grid(8, tp=2), Grid(16, cp=2, pp=4, vpp=2)])
def test_it_is_what_a_run_packs(grid: Grid) -> None:
    """With padding to the layout's multiple, and to whole groups of micro-batches under interleaved stages."""
    steps = lengths_of(6000, 100)
    found = packs_of(steps, grid, grid.vpp, 8192, ATTENTION)
    runs = [packed(lengths, grid, 8192, grid.pp if grid.vpp > 1 else 1) for lengths in steps]
    assert found.a_rank == np.mean([len(run.micro_batches[0]) for run in runs])
    fill = [run.num_tokens / (8192 * sum(map(len, run.micro_batches))) for run in runs]
    assert found.fill == pytest.approx(np.mean(fill), abs=1e-4)
    work = [work_of(run, lengths) for run, lengths in zip(runs, steps, strict=True)]
    assert found.over_ranks == pytest.approx(np.mean([w.sum(1).max() / w.sum(1).mean() for w in work]), abs=1e-4)
    assert found.over_rounds == pytest.approx(np.mean([w.max(0).sum() / w.sum(1).mean() for w in work]), abs=1e-4)
    assert found.over_rounds >= found.over_ranks >= 1


@pytest.mark.parametrize(("count", "longest", "dp"), [(64, 32768, 1), (256, 16384, 8), (256, 32768, 2)])
def test_two_steps_foretell_the_mean_of_many(count: int, longest: int, dp: int) -> None:
    draw = Random(41)
    many = [[draw.randint(2, longest) for _ in range(count)] for _ in range(24)]
    expected = packs_of(many, Grid(dp), 1, 32768, ATTENTION)
    found = packs_of(lengths_of(longest, count), Grid(dp), 1, 32768, ATTENTION)
    assert found.a_rank == pytest.approx(expected.a_rank, rel=0.03)
    assert found.idle(8, 1) == pytest.approx(expected.idle(8, 1), abs=0.01)
    assert found.a_rank > count * longest / 2 / 32768 / dp, "sequences leave gaps"


def test_an_even_pipeline_idles_by_the_formula() -> None:
    """Stages - 1 turns beside those of the micro-batches; two chunks a stage halve each."""
    found = packs_of([[1024] * 16], Grid(4, pp=4), 1, 1024, math.inf)
    assert (found.a_rank, found.fill, found.over_ranks, found.over_rounds) == (16, 1, 1, 1)
    assert found.idle(4, 1) == pytest.approx(3 / 19)
    assert found.idle(4, 2) == pytest.approx(1.5 / 17.5)
    assert found.idle(1, 1) == 0


@pytest.mark.parametrize(("count", "longest", "stages"), [(64, 32768, 8), (64, 16384, 4), (128, 8192, 16)])
def test_a_simulated_pipeline_is_as_idle(count: int, longest: int, stages: int) -> None:
    """Within two points: largest turns all the way are the most that uneven micro-batches cost."""
    steps = lengths_of(longest, count)
    found = packs_of(steps, Grid(stages, pp=stages), 1, 32768, ATTENTION).idle(stages, 1)
    simulated = []
    for lengths in steps:
        [work] = work_of(packed(lengths, Grid(stages, pp=stages), 32768), lengths)
        simulated.append(1 - work.sum() / simulate(work.tolist(), stages))
    assert np.mean(simulated) - 0.005 <= found <= np.mean(simulated) + 0.02


def simulate(work: list[float], stages: int) -> float:
    """Time of one forward, one backward, each stage on its own, backward passes twice as long as forward ones."""
    count, ended = len(work), dict[tuple[str, int, int], float]()
    orders = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, count)
        pairs = [step for i in range(count - ahead) for step in (("forward", i + ahead), ("backward", i))]
        last = [("backward", i) for i in range(count - ahead, count)]
        orders.append([("forward", i) for i in range(ahead)] + pairs + last)
    free = [0.0] * stages
    while any(orders):
        for stage, order in enumerate(orders):
            while order:
                kind, i = order[0]
                before = (kind, i, stage + (-1 if kind == "forward" else 1))
                if before[2] == stages:
                    before = ("forward", i, stage)
                if before[2] >= 0 and before not in ended:
                    break
                free[stage] = max(free[stage], ended.get(before, 0.0)) + work[i] * (1 if kind == "forward" else 2) / 3
                ended[kind, i, stage] = free[stage]
                order.pop(0)
    return max(free)


@pytest.mark.parametrize(
    ("words", "sequences"), [(["train.steps_per_rollout=4"], 64), (["algo=sft", "sft.num_steps=3"], 32)]
)
def test_a_step_of_the_run(words: list[str], sequences: int) -> None:
    """Of reinforcement learning one optimizer step of a rollout; of demonstrations up to the micro-batch's own size."""
    cfg = examine(["+model=glm4-tiny", "+cluster=local", *words]).cfg
    cap = cfg.train.max_tokens_per_micro_batch
    if cfg.algo.name == "sft":
        cfg.sft.batch_size = sequences
    longest = cap if cfg.algo.name == "sft" else 48
    expected = packs_of(lengths_of(longest, sequences), Grid(2), 1, cap, ATTENTION)
    assert foretold(cfg, Grid(2), 1, ATTENTION) == expected


def test_the_plan_shows_them() -> None:
    told = document(examine(["+model=glm5.2", "+cluster=h100x256"]), load())["packs"]
    assert told["a_rank"] > 32, "64 sequences of half the micro-batch in the mean, which do not fill it"
    assert told["pipeline_idle"] > 7 / (told["a_rank"] + 7), "not all micro-batches are as long as the largest"
