"""Ranks of this machine that exchange tokens as hosts do; the dispatcher is Megatron-core's."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from slime.errors import SlimeError
from slime_testing.ranks import Rank, run_ranks
from slime_tools.preflight import experts


def exchange(rank: Rank, is_wrong: bool) -> str:
    dist.init_process_group(
        "gloo", init_method=f"file://{rank.master_addr}", rank=rank.rank, world_size=rank.world_size
    )
    if is_wrong and rank.rank == 1:  # its experts compute something else
        own = experts._factors
        experts._factors = lambda *of: own(*of) + torch.ones(())
    try:
        return str(experts.exchange_tokens(rank.rank, rank.world_size, "cpu") > 0)
    except SlimeError as error:
        return error.what


@pytest.mark.slow
def test_tokens_come_back_from_the_experts_of_others() -> None:
    assert run_ranks(exchange, 3, False) == ["True"] * 3


@pytest.mark.slow
def test_wrong_sums_are_noticed_by_whoever_asked_for_them() -> None:
    told = run_ranks(exchange, 2, True)
    assert "other sums came back" in told[0]
