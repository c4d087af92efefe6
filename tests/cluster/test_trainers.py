"""What is made of all ranks' answers."""

from __future__ import annotations

import pytest

from slime.cluster.trainers import on_the_fullest, require_same_devices
from slime.errors import SlimeError


def test_memory_is_of_the_fullest_device_and_of_the_fullest_host() -> None:
    answers = [
        {"loss": 1.0, "memory/train_gib": device, "memory/train_host_gib": host}
        for device, host in ((10.0, 8.0), (12.0, 1.0), (11.0, 5.0), (9.0, 5.0))
    ]
    found = on_the_fullest(answers, ["a", "a", "b", "b"])
    assert found == {"loss": 1.0, "memory/train_gib": 12.0, "memory/train_host_gib": 10.0}
    assert on_the_fullest(answers, ["a", "b", "a", "b"])["memory/train_host_gib"] == 13.0


def test_without_gpus_nothing_is_made_up() -> None:
    assert on_the_fullest([{"loss": 1.0}, {"loss": 1.0}], ["a", "b"]) == {"loss": 1.0}


def test_ranks_that_begin_again_have_the_devices_of_their_host_in_any_order() -> None:
    nodes, before = ["a", "a", "b", "b"], ["0", "1", "0", "1"]
    require_same_devices(nodes, before, ["1", "0", "0", "1"])
    with pytest.raises(SlimeError, match="have the devices 0 of a, 2 of a, 0 of b, 1 of b now, and engines share 0"):
        require_same_devices(nodes, before, ["0", "2", "0", "1"])
