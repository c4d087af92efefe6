"""From values to advantages on a rank: over loss tokens alone, whitened over the step."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slime.algo.stages import run_stages
from slime_testing.ranks import Rank, run_ranks

from .test_critic import batches_of, start
from .tiny import write_model

GAMMA, LAMBDA, CRITICS = 0.99, 0.95, 0.9


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory)


def made(rank: Rank, model: Path, spoil: float) -> list[dict[str, np.ndarray]]:
    """By micro-batch: columns, mask, borders and rewards, where masked tokens have `spoil` as their value."""
    from slime_megatron.train.returns import with_advantages

    trainer = start(rank, model)
    batches, estimator = batches_of(trainer, 1, max_tokens=100), run_stages(trainer.cfg)["rl"].estimator
    local = [trainer._local(batch) for batch in batches]
    generator = torch.Generator().manual_seed(0)
    values = [
        [torch.randn(1, len(own.loss_mask), generator=generator).masked_fill(own.loss_mask == 0, spoil) for own in of]
        for of in local
    ]
    whole = [batch.micro_batches[0] for batch in batches]
    valued, found = with_advantages(estimator, whole, local, values, torch.device("cpu"), contiguous=False)
    assert 0 < 1 - found["explained_variance"] < 10
    given: list[dict[str, Any]] = [
        {name: own.columns[name].double().numpy() for name in ("advantages", "values", "returns")}
        | {"mask": micro.loss_mask, "borders": micro.cu_seqlens, "rewards": micro.columns["advantages"]}
        for of_whole, of in zip(whole, valued, strict=True)
        for micro, own in zip(of_whole, of, strict=True)
    ]
    return given


def paper(rewards: list[float], values: list[float], lam: float = LAMBDA) -> list[float]:
    """Equation 16 of arXiv 1506.02438."""
    count, following = len(rewards), [*values[1:], 0.0]
    deltas = [rewards[t] + GAMMA * following[t] - values[t] for t in range(count)]
    return [math.fsum((GAMMA * lam) ** (k - t) * deltas[k] for k in range(t, count)) for t in range(count)]


def test_the_step_is_the_papers_over_loss_tokens_whitened(model: Path) -> None:
    [packs] = run_ranks(made, 1, model, 0.0)
    assert len(packs) > 2
    advantages, returns, wanted = [], [], []
    for pack in packs:
        masked = pack["mask"] == 0
        assert all((pack[name][masked] == 0).all() for name in ("advantages", "values", "returns"))
        for start_of, end in zip(pack["borders"][:-1], pack["borders"][1:], strict=True):
            rows = [row for row in range(start_of, end) if not masked[row]]
            given = pack["rewards"][rows].tolist(), pack["values"][rows].tolist()
            of_sequence, targets = paper(*given), paper(*given, CRITICS)
            wanted += of_sequence
            advantages += pack["advantages"][rows].tolist()
            returns += pack["returns"][rows].tolist()
            # fp32 keeps seven digits of numbers of order 1.
            expected = [a + v for a, v in zip(targets, given[1], strict=True)]
            assert pack["returns"][rows].tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)
    mean, deviation = np.mean(wanted), np.std(wanted)
    assert advantages == pytest.approx([(a - mean) / deviation for a in wanted], rel=2e-6, abs=2e-6)
    assert np.mean(advantages) == pytest.approx(0, abs=1e-6)
    assert np.std(advantages) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("spoil", [math.nan, math.inf, -math.inf])
def test_values_of_masked_tokens_are_never_read(model: Path, spoil: float) -> None:
    [[clean], [spoilt]] = run_ranks(made, 1, model, 0.0), run_ranks(made, 1, model, spoil)
    for one, other in zip(clean, spoilt, strict=True):
        for name, numbers in one.items():
            assert np.array_equal(numbers, other[name]), name
