"""Ids of tokens, of the sequences and of what came with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slime.config.schema import LossMean, SlimeConfig
from slime.errors import SlimeError
from slime.objective import Column
from slime.train.packing import pack
from slime_testing.ranks import Rank, run_ranks
from slime_testing.recorded import recorded_samples


@pytest.mark.parametrize(("odd", "is_masked"), [(95, False), (96, True), (96, False), (-1, False)])
def test_a_token_that_the_model_has_not_is_named(odd: int, is_masked: bool) -> None:
    from slime_megatron.train.local_batch import require_tokens

    samples = [
        x.with_columns(ids=np.zeros((x.num_response_tokens, 2), np.int32), counts=np.full(x.num_response_tokens, 1000))
        for x in recorded_samples(5, 96)
    ]
    place = np.flatnonzero((samples[3].loss_mask == 0) == is_masked)[0]
    samples[3].columns["ids"][place, 1] = odd
    [batch] = pack(samples, num_dp=1, align=1, max_tokens=64, loss_mean=LossMean.token)
    columns = [Column("ids", width=2, ids=True), Column("counts"), Column("others", width=2, ids=True, optional=True)]
    if odd == 95 or is_masked:
        require_tokens(batch.micro_batches[0], columns, 96)
        return
    with pytest.raises(SlimeError, match=f"column 'ids' of the samples: there is a token {odd}, and the model has 96"):
        require_tokens(batch.micro_batches[0], columns, 96)


@pytest.mark.parametrize("odd", [95, 96, 2**31, -1])
@pytest.mark.parametrize(("name", "place"), [("first", 0), ("last", -1)])
def test_a_sequence_with_a_token_that_the_model_has_not_is_named(odd: int, name: str, place: int) -> None:
    from slime_megatron.train.local_batch import require_tokens

    samples = recorded_samples(5, 96)
    samples[3].tokens[place] = odd
    [batch] = pack(samples, num_dp=1, align=8, max_tokens=128, loss_mean=LossMean.token)
    if odd == 95:
        require_tokens(batch.micro_batches[0], (), 96)
        return
    with pytest.raises(SlimeError, match=f"sample 3 of the step: there is a token {odd}, and the model has 96"):
        require_tokens(batch.micro_batches[0], (), 96)


def lengths_of_pairs(rank: Rank) -> list[tuple[list[int], list[int]]]:
    """Of each micro-batch the tokens of its sequences, and of its attempts."""
    import torch

    from slime_megatron.train import megatron
    from slime_megatron.train.local_batch import local_micro_batches

    megatron.initialize(SlimeConfig(), *rank)
    samples = [replace(each, attempt=number // 2) for number, each in enumerate(recorded_samples(6, 96))]
    [batch] = pack(samples, num_dp=1, align=1, max_tokens=128, loss_mean=LossMean.token, whole_attempts=True)
    found = local_micro_batches(batch, torch.device("cpu"))
    assert all(micro.attempt_lengths is not None for micro in found)
    return [(micro.sequence_lengths.tolist(), list(map(int, micro.attempt_lengths))) for micro in found]


@pytest.mark.slow
def test_an_attempt_is_as_long_as_its_sequences() -> None:
    [found] = run_ranks(lengths_of_pairs, 1)
    assert sum(len(attempts) for _, attempts in found) == 3
    for sequences, attempts in found:
        assert attempts == [sum(pair) for pair in zip(sequences[::2], sequences[1::2], strict=True)]
