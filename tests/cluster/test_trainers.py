"""What is made of all ranks' answers."""

from __future__ import annotations

from slime.cluster.trainers import on_the_fullest


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
