"""How large Ray's object store is, this host among those of a hostfile, and what is said of one that is not reached."""

from __future__ import annotations

import pickle
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from slime.cluster.host import Order
from slime.cluster.launch import SMALL_CALLS_BYTES, Own, find_own, object_store_bytes
from slime.cluster.ssh import sessions
from slime.config.schema import ClusterConfig, LossMean, RolloutConfig, SamplingConfig, SftConfig, SlimeConfig
from slime.errors import SlimeError
from slime.train.packing import pack
from slime.types import TrainSample

CLUSTER = ClusterConfig(name="it", hostfile="hosts")
ELSEWHERE = "192.0.2.1"
"""An address that no host has (RFC 5737)."""


def own_address() -> str:
    """From which this host would write to another; a machine without a network has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        try:
            route.connect((ELSEWHERE, 9))
        except OSError:
            pytest.skip("this machine has no network")
        return str(route.getsockname()[0])


def test_the_driver_finds_its_host_by_address_and_by_name() -> None:
    address = own_address()
    assert find_own([ELSEWHERE, address], CLUSTER) == Own(1, address)
    assert find_own([socket.gethostname(), ELSEWHERE], CLUSTER) == Own(0, address)
    assert find_own([f"me@{ELSEWHERE}", f"me@{address}"], CLUSTER) == Own(1, address)
    assert find_own([f"ssh://me@{address}:2222", ELSEWHERE], CLUSTER) == Own(0, address)


def test_an_only_host_needs_no_address() -> None:
    assert find_own(["localhost"], CLUSTER) == Own(0, "")


def test_a_driver_beside_the_hosts_is_refused() -> None:
    with pytest.raises(SlimeError, match=f"^hosts: none of {ELSEWHERE} is this host. Start slime on one of them"):
        find_own([ELSEWHERE], CLUSTER)


def test_an_address_that_nobody_can_know_is_asked_for() -> None:
    """The others are names of ~/.ssh/config alone, so that no route to them tells it."""
    with pytest.raises(SlimeError, match="is this host, but not the address at which the others reach it") as raised:
        find_own(["localhost", "only-in.ssh-config.invalid"], CLUSTER)
    assert "Write that address in place of 'localhost'." in str(raised.value)


def test_a_host_that_ssh_does_not_reach_is_named(tmp_path: Path) -> None:
    """The real client, at a port where nothing listens."""
    order, name = (
        Order(number=1, mark="test", environment={}, folder="", module="this", arguments=[]),
        "ssh://127.0.0.1:9",
    )
    with sessions({name: order}, tmp_path) as running:
        deadline = time.monotonic() + 30
        while not (fault := running.fault("starting")) and time.monotonic() < deadline:
            time.sleep(0.05)
    lost = (
        f"host {name}: the host was lost while starting: its session of ssh ended with exit code 255 (ssh: connect to"
    )
    assert str(fault).startswith(lost)
    assert str(fault).endswith("see to the host, then start the same command again to resume.")


def sample(num_prompt_tokens: int, num_response_tokens: int) -> TrainSample:
    values = np.ones(num_response_tokens, np.float32)
    tokens = np.arange(num_prompt_tokens + num_response_tokens)
    return TrainSample(tokens, values, advantages=values, rollout_logprobs=values, is_current=values)


@pytest.mark.parametrize("num_dp", [1, 4])
def test_the_largest_batch_fits(num_dp: int) -> None:
    sampling = SamplingConfig(max_response_tokens=1000)
    rollout = RolloutConfig(prompts_per_step=8, samples_per_prompt=8, max_prompt_tokens=99, sampling=sampling)
    cfg = SlimeConfig(rollout=rollout)
    batches = pack(
        [sample(99, 1000)] * 64,
        num_dp=num_dp,
        align=64,
        max_tokens=2400,
        loss_mean=LossMean.token,
        num_optimizer_steps=2,
    )
    shares = [[batch.share(rank) for batch in batches] for rank in range(num_dp)]
    held = sum(len(pickle.dumps(share, protocol=5)) for share in shares)
    assert held < object_store_bytes(cfg) - SMALL_CALLS_BYTES < 1.2 * held


def test_demonstrations_count_where_they_are_more() -> None:
    cfg = SlimeConfig()
    cfg.algo.name, cfg.rollout.prompts_per_step = "grpo", 1
    without = object_store_bytes(cfg)
    cfg.sft = SftConfig(num_steps=1, batch_size=1000)
    assert object_store_bytes(cfg) > without
    cfg.sft.num_steps = 0
    assert object_store_bytes(cfg) == without
