"""Columns of several numbers a token, on their way from samples to micro-batches."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest

from slime.config.schema import LossMean
from slime.train.packing import pack
from slime.types import TrainSample
from slime_testing.recorded import recorded_samples

WIDTH = 3


def samples(count: int) -> list[TrainSample]:
    """Neighbours have the same prompt. What masked tokens carry is of no use."""
    generator, found = np.random.default_rng(0), []
    for number, drawn in enumerate(recorded_samples(count, 50, seed=3)):
        prompt = np.full(9, number // 4)
        sample = dataclasses.replace(drawn, tokens=np.concatenate([prompt, drawn.tokens[-drawn.num_response_tokens :]]))
        shape, masked = (sample.num_response_tokens, WIDTH), sample.loss_mask[:, None] == 0
        ids = np.where(masked, -7, generator.integers(1, 50, shape)).astype(np.int64)
        values = np.where(masked, np.nan, generator.normal(size=shape)).astype(np.float64)
        found.append(sample.with_columns(ids=ids, values=values))
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"num_dp": 1, "align": 1, "max_tokens": 10_000},
        {"num_dp": 1, "align": 1, "max_tokens": 10_000, "share_below": 1.0},
        {"num_dp": 3, "align": 4, "max_tokens": 64},
        {"num_dp": 4, "align": 8, "max_tokens": 96, "micro_batch_multiple": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("count", [1, 37])
def test_they_stand_where_their_tokens_are_predicted(options: dict, count: int) -> None:
    """Ids stay integers. Ranks that have no sequence have padding with columns of the same kind."""
    given, seen = samples(count), []
    (batch,) = pack(given, loss_mean=LossMean.token, **options)
    for micro in (micro for of_rank in batch.micro_batches for micro in of_rank):
        shape = (len(micro.tokens), WIDTH)
        for name, dtype in (("ids", np.int32), ("values", np.float32)):
            column = micro.columns[name]
            assert (column.shape, column.dtype) == (shape, dtype)
            assert not column[micro.loss_mask == 0].any()
            for number, (start, end) in zip(micro.sample_ids, pairwise(micro.cu_seqlens), strict=False):
                rows = start + np.flatnonzero(micro.loss_mask[start:end])
                wanted = given[number].columns[name][given[number].loss_mask != 0]
                assert (column[rows] == wanted.astype(dtype)).all()
        seen += micro.sample_ids
        assert (micro.prefixes is not None) == ("share_below" in options and count > 1)
    assert sorted(seen) == list(range(count))
