"""Foretold micro-batches and waiting against what the trainer's packer makes of samples, and against a pipeline that is
simulated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from slime.compose.compose import examine
from slime.layout import Grid
from slime.models.blocks import Attention
from slime.train.bins import Shape
from slime.train.packing import RankLayout, pack_for
from slime.types import Batch, MicroBatch, TrainSample
from slime_tools.bubbles import packs
from slime_tools.bubbles.lengths import Drawn, Lengths, num_together
from slime_tools.bubbles.packs import foretold, packed_work, waiting

ATTENTION = 24576.0


def uniform(longest: int, count: int) -> Lengths:
    return Lengths(count, 1, 1, longest - 1, longest)


def shape_of(grid: Grid, cap: int, *, shares: bool = False, pairs: bool = False) -> Shape:
    multiple, attention = grid.pp if grid.vpp > 1 else 1, (Attention(2 / ATTENTION),)
    return Shape(grid.dp, multiple, grid.packing_align, cap, shares, attention, pairs)


def samples_of(drawn: Sequence[Drawn], *, pairs: bool) -> list[TrainSample]:
    """As a rollout has them: ids of tokens, of which those of a prompt are its group's own."""
    return [
        TrainSample(
            np.concatenate([np.full(one.prompt, one.unit), np.arange(one.response)]),
            np.ones(one.response, np.float32),
            attempt=one.unit if pairs else None,
        )
        for one in drawn
    ]


def work_of(batch: Batch, samples: Sequence[TrainSample]) -> np.ndarray:
    """[ranks, micro-batches], of what stands in them."""
    return np.asarray([[_work(micro, samples) for micro in of_rank] for of_rank in batch.micro_batches])


def _work(micro: MicroBatch, samples: Sequence[TrainSample]) -> float:
    tokens = np.asarray([samples[i].num_tokens for i in micro.sample_ids], float)
    skipped = 0.0 if micro.prefixes is None else micro.prefixes
    return float(np.sum(tokens - skipped + (tokens**2 - skipped**2) / ATTENTION))


def runs_pack(drawn: Sequence[Drawn], grid: Grid, shape: Shape) -> np.ndarray:
    """What `slime.train.packing.pack_for` makes of samples with these lengths, as the run calls it."""
    cfg = examine(["+model=glm4-tiny", "+cluster=local"]).cfg
    cfg.train.max_tokens_per_micro_batch = shape.max_tokens
    layout = RankLayout(0, grid.dp, shape.align, shape.multiple, shape.share_below, shape.attention)
    samples = samples_of(drawn, pairs=shape.whole_attempts)
    [batch] = pack_for(cfg, layout, samples, 1, whole_attempts=shape.whole_attempts)
    return work_of(batch, samples)


@pytest.mark.parametrize(
    ("grid", "shares", "pairs"),
    [
        (Grid(8, tp=2), False, False),
        (Grid(8, ep=4), False, False),
        (Grid(16, cp=2, pp=4, vpp=2), False, False),
        (Grid(4), True, False),
        (Grid(4), False, True),
    ],
)
def test_it_is_what_a_run_packs(grid: Grid, shares: bool, pairs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With padding to the layout's multiple, and to whole groups of micro-batches under interleaved stages."""
    lengths = Lengths(120, 2 if pairs else 8, 1000, 3000, 4000, pairs)
    shape = shape_of(grid, 8192, shares=shares, pairs=pairs)
    steps = lengths.steps(2)
    seen = [runs_pack(drawn, grid, shape) for drawn in steps]
    for drawn, work in zip(steps, seen, strict=True):
        np.testing.assert_allclose(packed_work(drawn, shape), work)
    monkeypatch.setattr(packs, "MOST", 1024)
    monkeypatch.setattr(packs, "MOST_STEPS", 2)
    found = foretold(lengths, grid, grid.vpp, shape)
    assert found.micro_batches == np.mean([work.shape[1] for work in seen])
    turns = (grid.pp - 1) / grid.vpp
    expected = np.mean([waiting(work, num_together(grid), turns) for work in seen], axis=0)
    assert (found.ranks, found.pipeline) == pytest.approx(tuple(expected))


def test_what_is_even_waits_for_nobody_but_the_pipeline() -> None:
    """Stages - 1 turns beside those of the micro-batches; two chunks a stage halve each."""
    work = np.ones((4, 16))
    assert waiting(work, 4, 0) == (0, 0)
    assert waiting(work, 1, 3) == pytest.approx((0, 3 / 19))
    assert waiting(work, 1, 3 / 2) == pytest.approx((0, 1.5 / 17.5))
    assert waiting(work, 1, 3, times=4) == pytest.approx((0, 3 / 67))


def test_ranks_wait_at_the_end_or_at_every_micro_batch() -> None:
    """Two ranks with as much work in all, of whose micro-batches one is longer each time."""
    work = np.asarray([[3.0, 1.0], [1.0, 3.0]])
    assert waiting(work, 1, 0) == (0, 0)
    assert waiting(work, 2, 0) == pytest.approx((1 / 3, 0))
    longer = np.asarray([[3.0, 1.0], [1.0, 5.0]])
    assert waiting(longer, 1, 0) == pytest.approx((1 / 6, 0))
    assert waiting(longer, 2, 0) == pytest.approx((3 / 8, 0))
    assert waiting(longer, 1, 1) == pytest.approx((2 / 11, 4 / 11))


@pytest.mark.parametrize(
    ("count", "longest", "grid"), [(64, 32768, Grid(8, pp=8)), (256, 16384, Grid(8, ep=8)), (256, 32768, Grid(2))]
)
def test_few_steps_foretell_the_mean_of_many(count: int, longest: int, grid: Grid) -> None:
    shape, many = shape_of(grid, 32768), uniform(longest, count).steps(64)
    works = [packed_work(drawn, shape) for drawn in many]
    ranks, pipeline = np.mean([waiting(work, num_together(grid), grid.pp - 1) for work in works], axis=0)
    found = foretold(uniform(longest, count), grid, 1, shape)
    assert found.micro_batches == pytest.approx(np.mean([work.shape[1] for work in works]), rel=0.03)
    assert found.ranks == pytest.approx(ranks, abs=0.005)
    assert found.pipeline == pytest.approx(pipeline, abs=0.01)


@pytest.mark.parametrize(("count", "grid"), [(8192, Grid(64, ep=8)), (4096, Grid(8, pp=4)), (3000, Grid(1))])
def test_of_a_large_step_a_part_is_packed(count: int, grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose mean length is within a twentieth."""
    lengths, shape = uniform(16384, count), shape_of(grid, 32768)
    part = foretold(lengths, grid, 1, shape)
    monkeypatch.setattr(packs, "MOST", count)
    whole = foretold(lengths, grid, 1, shape)
    assert part.micro_batches == pytest.approx(whole.micro_batches, abs=max(1, 0.05 * whole.micro_batches))
    assert part.full == pytest.approx(whole.full, abs=0.03)
    assert part.ranks == pytest.approx(whole.ranks, abs=0.01)
    assert part.pipeline == pytest.approx(whole.pipeline, abs=0.01)


@pytest.mark.parametrize(("count", "longest", "stages"), [(64, 32768, 8), (64, 16384, 4), (128, 8192, 16)])
def test_a_simulated_pipeline_is_as_idle(count: int, longest: int, stages: int) -> None:
    """Within two points: largest turns all the way are the most that uneven micro-batches cost."""
    grid = Grid(stages, pp=stages)
    lengths, shape = uniform(longest, count), shape_of(grid, 32768)
    found = foretold(lengths, grid, 1, shape).pipeline
    simulated = []
    for drawn in lengths.steps(packs.MOST_STEPS):
        [work] = runs_pack(drawn, grid, shape)
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


def test_attention_may_be_no_work() -> None:
    shape = Shape(2, 1, 1, 100, False)
    assert packed_work([Drawn(1, 9, 0), Drawn(1, 9, 1)], shape).tolist() == [[10], [10]]


def test_a_rank_without_a_sequence_waits_all_the_time() -> None:
    grid = Grid(2)
    assert foretold(uniform(10, 1), grid, 1, shape_of(grid, 100)).ranks == pytest.approx(0.5)
