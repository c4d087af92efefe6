"""KV caches between hosts that are processes of this one; over Ray and network namespaces in
`tests/test_preflight_pairs.py`."""

from __future__ import annotations

from itertools import product

import pytest

from slime.errors import SlimeError
from slime.net import LOOPBACK
from slime_testing.ranks import Rank, run_ranks
from slime_tools.preflight.host_checks import Fault, HostFacts
from slime_tools.preflight.hosts import complaint, notes, with_transfers
from slime_tools.preflight.transfer import FORCE_TCP, Mover, Place, Transfers, meetings

TCP = {FORCE_TCP: "1"}


@pytest.mark.parametrize(("num_from", "num_to"), [(1, 1), (1, 3), (3, 1), (2, 2), (8, 24)])
def test_every_pair_meets_once_and_nobody_sends_or_receives_twice_at_a_time(num_from: int, num_to: int) -> None:
    rounds = meetings(num_from, num_to)
    for pairs in rounds:
        senders, receivers = zip(*pairs, strict=True)
        assert len({*senders}) == len({*receivers}) == len(pairs)
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == [*product(range(num_from), range(num_to))]


def found(*hosts: str) -> dict[str, HostFacts]:
    return {host: HostFacts(host, 0.0, [], {"memory": "1.0 TiB"}) for host in hosts}


def test_the_report_has_a_line_for_each_pair_and_names_the_slow_host() -> None:
    """The control is the other decode host."""
    rates = {("a", "c"): 12e9, ("b", "c"): 11e9, ("a", "d"): 1e9, ("b", "d"): 1.1e9}
    seen = with_transfers(found("a", "b", "c", "d"), Transfers(rates, "RDMA (mlx5_0)"))
    assert seen["a"].facts == {
        "memory": "1.0 TiB",
        "to c": "11.2 GiB/s of KV caches by mooncake over RDMA (mlx5_0)",
        "to d": "953.7 MiB/s of KV caches by mooncake over RDMA (mlx5_0)",
    }
    assert seen["c"].facts == {"memory": "1.0 TiB"}
    (told,) = notes(seen)
    assert told.startswith("preflight: d: its transfers of KV caches carry 1001.4 MiB a second, the median host's ")
    assert "cluster.ib_devices" in told
    assert complaint(seen) is None


def test_a_host_that_sends_nothing_is_not_ready() -> None:
    seen = with_transfers(
        found("a", "b"), Transfers(faults={"a": Fault("nothing gets to b", "See cluster.ib_devices.")})
    )
    assert str(complaint(seen)) == "preflight: a: nothing gets to b. See cluster.ib_devices."
    assert notes(seen) == []


def send(rank: Rank, is_torn: bool) -> str:
    """From one mover to another; `is_torn`: a byte changes on the way."""
    sender, receiver = (Mover(TCP, "", on_gpus=False) for _ in range(2))
    sender.start(LOOPBACK)
    place = receiver.start(LOOPBACK)
    rate, digest = sender.write(place)
    assert rate > 0
    receiver._got[-1] += int(is_torn)
    try:
        receiver.check(digest)
    except SlimeError as error:
        return error.what
    assert not receiver._got.any(), "room for the next"
    return place.way


def send_nowhere(rank: Rank) -> str:
    sender = Mover(TCP, "", on_gpus=False)
    sender.start(LOOPBACK)
    try:
        sender.write(Place(f"{LOOPBACK}:1", 0, "TCP"))
    except SlimeError as error:
        return str(error)
    return ""


def start_on(rank: Rank, environment: dict[str, str], devices: str) -> str:
    try:
        return Mover(environment, devices, on_gpus=False).start(LOOPBACK).way
    except SlimeError as error:
        return str(error)


def send_as_sglang(rank: Rank) -> bool:
    """By the class that SGLang's engines send with."""
    import os

    import torch

    receiver = Mover(TCP, "mlx5_9", on_gpus=False)
    place = receiver.start(LOOPBACK)
    from sglang.srt.distributed.device_communicators.mooncake_transfer_engine import MooncakeTransferEngine

    assert os.environ[FORCE_TCP] == "1"
    theirs = MooncakeTransferEngine(LOOPBACK, 0, "mlx5_9")
    told = torch.randint(256, receiver._got.shape, dtype=torch.uint8)
    theirs.register(told.data_ptr(), told.nbytes)
    assert theirs.transfer_sync(place.session, told.data_ptr(), place.pointer, told.nbytes) == 0
    return torch.equal(receiver._got, told)


@pytest.mark.slow
@pytest.mark.usefixtures("_mooncake")
class TestMooncake:
    def test_bytes_arrive_whole_and_a_torn_one_is_noticed(self) -> None:
        assert run_ranks(send, 1, False) == ["TCP"]
        assert run_ranks(send, 1, True) == ["other bytes arrive than were sent"]

    def test_a_port_where_nobody_listens_is_named(self) -> None:
        (told,) = run_ranks(send_nowhere, 1)
        assert told.startswith(f"nothing arrives at {LOOPBACK}:1 over TCP (-1). Let TCP ports 15000 to 17000 through")

    def test_a_device_that_is_not_there_is_named_where_mooncake_would_take_tcp(self) -> None:
        """The control asks for no RDMA."""
        (told,) = run_ranks(start_on, 1, {}, "mlx5_9")
        assert told.startswith("mooncake finds no RDMA device mlx5_9, and would send by TCP. See 'ibv_devinfo' there")
        assert "cluster.ib_devices" in told
        assert run_ranks(start_on, 1, TCP, "mlx5_9") == ["TCP"]

    def test_engines_of_sglang_reach_what_the_preflight_starts(self) -> None:
        assert run_ranks(send_as_sglang, 1) == [True]
