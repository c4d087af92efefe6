"""Processes that exchange data as hosts do; over Ray and two hosts in `tests/test_run_two_hosts.py`."""

from __future__ import annotations

import time
from itertools import combinations
from pathlib import Path

import pytest

from slime.net import LOOPBACK, LOOPBACK_SETTINGS, serve_store
from slime_testing.ranks import Rank, run_ranks
from slime_tools.preflight import network
from slime_tools.preflight.network import Peer, rounds, slow


@pytest.mark.parametrize("num_hosts", [2, 3, 8, 32])
def test_every_two_hosts_meet_once_and_nobody_meets_two_at_a_time(num_hosts: int) -> None:
    plan = rounds(num_hosts)
    for partners in plan:
        assert all(other is None or partners[other] == host for host, other in enumerate(partners))
    met = [(host, other) for partners in plan for host, other in enumerate(partners) if other is not None]
    assert sorted(pair for pair in met if pair[0] < pair[1]) == [*combinations(range(num_hosts), 2)]


def test_the_host_is_named_that_is_far_slower_than_the_others() -> None:
    """The control is one that is somewhat slower."""
    assert slow({"a": 12e9, "b": 11e9, "c": 8e9}) == {}
    assert slow({}) == {}, "they could not exchange anything"
    (told,) = slow({"a": 12e9, "b": 11e9, "c": 1e9}).items()
    assert told[0] == "c"
    assert told[1].startswith("its network carries 953.7 MiB a second, the median host's 10.2 GiB.")


def exchange(rank: Rank, plan: list[list[int | None]]) -> tuple[float, list[float | None], float]:
    """As the actor of a host does; returns also the seconds in which all messages went through."""
    peer = Peer(LOOPBACK_SETTINGS, on_gpus=False)
    told = Path(rank.master_addr).with_name("port")
    if rank.rank == 0:
        peer._store = serve_store(LOOPBACK)
        told.with_suffix(".new").write_text(str(peer._store.port))
        told.with_suffix(".new").rename(told)
    while not told.exists():
        time.sleep(0.01)
    collective = peer.join(rank.rank, rank.world_size, (LOOPBACK, int(told.read_text())))
    start = time.perf_counter()
    rates = peer.exchange([partners[rank.rank] for partners in plan])
    assert (peer._got == 1).all(), "what the last partner sent"
    return collective, rates, time.perf_counter() - start


@pytest.mark.slow
def test_three_hosts_exchange_with_each_other() -> None:
    """No rate can be above that of all messages by the clock around them."""
    plan = rounds(3)
    for rank, (collective, rates, seconds) in enumerate(run_ranks(exchange, 3, plan)):
        assert collective > 0
        assert [rate is None for rate in rates] == [partners[rank] is None for partners in plan]
        found = [rate for rate in rates if rate is not None]
        assert sum(network.GLOO_BYTES / rate for rate in found) < seconds
