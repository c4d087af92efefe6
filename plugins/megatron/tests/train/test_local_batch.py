"""Ids of tokens, of the sequences and of what came with them."""

from __future__ import annotations

import numpy as np
import pytest

from slime.config.schema import LossMean
from slime.errors import SlimeError
from slime.objective import Column
from slime.train.packing import pack
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
