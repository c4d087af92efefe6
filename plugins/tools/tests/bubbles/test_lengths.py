"""Drawn lengths, and who waits for whom."""

from __future__ import annotations

import numpy as np
import pytest

from slime.algo.stages import run_stages
from slime.compose.compose import examine
from slime.config.schema import SlimeConfig
from slime.layout import Grid
from slime_tools.bubbles.lengths import Lengths, lengths_of, num_together


def config(*words: str) -> SlimeConfig:
    return examine(["+model=glm4-tiny", "+cluster=local", *words]).cfg


def test_lengths_are_spread_evenly_and_the_same_every_time() -> None:
    lengths = Lengths(4096, 8, 100, 1000, 1100)
    [first, second] = steps = lengths.steps(2)
    assert lengths.steps(2) == steps
    assert sorted(first) != sorted(second)
    responses = [one.response for one in first]
    assert (min(responses), max(responses)) == (1, 1000)
    shares, _ = np.histogram(responses, bins=4)
    assert max(shares) < 1.1 * min(shares)
    assert np.mean([one.response for step in steps for one in step]) == pytest.approx(500.5, abs=0.5)
    assert np.mean([one.prompt for step in steps for one in step]) == pytest.approx(50.5, abs=0.5)


def test_samples_of_a_group_have_one_prompt() -> None:
    [step] = Lengths(20, 8, 1000, 10, 2000).steps(1)
    prompts = [one.prompt for one in step]
    assert [one.unit for one in step] == [number // 8 for number in range(20)]
    assert prompts == [prompts[number // 8 * 8] for number in range(20)]
    assert len({*prompts}) == 3


def test_no_sequence_is_longer_than_the_most_of_both() -> None:
    [step] = Lengths(500, 1, 100, 100, 90).steps(1)
    assert max(one.prompt + one.response for one in step) == 90
    assert min(min(one.prompt, one.response) for one in step) >= 1


def lengths(cfg: SlimeConfig, grid: Grid) -> Lengths | None:
    stage, most = run_stages(cfg).all[-1], cfg.train.max_tokens_per_micro_batch
    return lengths_of(stage, cfg.rollout, cfg.sft.batch_size, most, grid)


def test_of_reinforcement_learning_it_is_an_optimizer_step_of_a_rollout() -> None:
    cfg = config("train.steps_per_rollout=4", "rollout.sampling.max_sequence_tokens=40")
    rollout = cfg.rollout
    expected = Lengths(64, 8, rollout.max_prompt_tokens, rollout.sampling.max_response_tokens, 40)
    assert lengths(cfg, Grid(2)) == expected


@pytest.mark.parametrize(
    ("algo", "expected"),
    [("sft", Lengths(30, 1, 1, 996, 997)), ("dpo", Lengths(60, 2, 1, 497, 498, are_pairs=True))],
)
def test_of_rows_it_is_what_fits_a_micro_batch(algo: str, expected: Lengths) -> None:
    """A pair of answers stands in one."""
    words = (f"algo={algo}", "sft.num_steps=3", "sft.batch_size=30", "train.max_tokens_per_micro_batch=997")
    assert lengths(config(*words), Grid(2)) == expected


def test_where_nothing_fits_there_are_none() -> None:
    words = ("algo=dpo", "sft.num_steps=3", "train.max_tokens_per_micro_batch=12")
    assert lengths(config(*words), Grid(8, cp=4)) is None


@pytest.mark.parametrize(
    ("grid", "ranks"),
    [
        (Grid(8), 1),
        (Grid(8, tp=4, etp=4), 1),
        (Grid(8, ep=8), 8),
        (Grid(16, tp=2, cp=2, ep=8), 2),
        (Grid(16, tp=4, cp=2, ep=2, etp=4), 1),
        (Grid(12, tp=4, ep=6), 3),
    ],
)
def test_ranks_wait_together_whose_experts_are_shared(grid: Grid, ranks: int) -> None:
    """As the groups of both kinds of layers say, rank by rank."""
    assert num_together(grid) == ranks
    met = {0}
    while True:
        more = {
            rank
            for kind in ("ep", "etp", "tp", "cp")
            for group in grid.groups(kind)
            if met & {*group}
            for rank in group
        }
        if more <= met:
            break
        met |= more
    assert len({grid.coordinates(rank)["dp"] for rank in met}) == ranks
