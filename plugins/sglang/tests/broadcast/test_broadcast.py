"""Weights by broadcast into a real engine: the same receipts, and the same faults, as through memory."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest
import torch

from slime.errors import SlimeError
from slime.net import LOOPBACK, Endpoint, reserved_port
from slime_testing.engines import hf_tensors, running_engine
from slime_testing.publishing import publish
from tests.transports import BUCKET, VICTIM, broadcast, flip_bit, half, joined
from weight_buckets.bucket import Bucket

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tensors(hf_model, tiny_model):
    return dict(hf_tensors(hf_model(tiny_model)))


@pytest.fixture(scope="module")
def group(endpoint):
    """This process and the session's engine."""
    with joined("test-weights", endpoint) as group:
        yield group


@pytest.fixture(scope="module")
def send(group, endpoint):
    """Publishes to the session's engine."""
    return lambda tensors, version, **changed: broadcast(iter(tensors.items()), group, [endpoint], version, **changed)


def fail():
    raise SlimeError("no more", where="export", todo="Nothing.")


def test_receipt_is_that_of_shared_memory(endpoint, group, send, tensors):
    shared = publish(iter(tensors.items()), [endpoint], 1, BUCKET)
    receipt = send(tensors, 2)
    assert receipt.version == 2
    assert receipt.num_bytes == sum(tensor.nbytes for tensor in tensors.values())
    assert (receipt.num_tensors, receipt.fingerprint) == (shared.num_tensors, shared.fingerprint)
    num_keys = group.store.num_keys()
    send(tensors, 3)
    assert group.store.num_keys() == num_keys, "nothing of a version stays"


class FlippedBit(Bucket):
    """Memory that loses a bit between its digest and the wire."""

    def fill(self, tensors):
        super().fill(tensors)
        flip_bit(self)


FAULTS = {
    "flipped bit": (dict, FlippedBit, rf"'{VICTIM}' arrived with digest"),
    "left out": (lambda tensors: {name: x for name, x in tensors.items() if name != VICTIM}, Bucket, VICTIM),
    "extra": (
        lambda tensors: {**tensors, "stranger.weight": torch.zeros(3, 3)},
        Bucket,
        r"'stranger.weight'.* no place",
    ),
}


@pytest.mark.parametrize(("change", "bucket_type", "message"), FAULTS.values(), ids=FAULTS)
def test_fault_is_named_and_mended_by_the_next_publish(send, tensors, change, bucket_type, message):
    send(tensors, 1)
    with pytest.raises(SlimeError, match=message):
        send(change(tensors), 2, bucket_type=bucket_type)
    assert send(tensors, 3).version == 3


def test_export_that_fails_lets_the_engine_go(endpoint, group, send, tensors):
    with pytest.raises(SlimeError, match="no more"):
        broadcast(half(tensors, fail), group, [endpoint], 4)
    assert send(tensors, 5).version == 5


def test_engine_that_does_not_leave_is_not_waited_for(engine, send, tensors):
    """Stopped, it answers as one that waits for a dead other under NCCL: not at all. The group is of no use then."""

    def stop_and_fail():
        os.killpg(engine.pid, signal.SIGSTOP)
        fail()

    with joined("left", engine.endpoint) as left:
        try:
            with pytest.raises(SlimeError, match="no more"):
                broadcast(half(tensors, stop_and_fail), left, [engine.endpoint], 6)
        finally:
            os.killpg(engine.pid, signal.SIGCONT)
    assert send(tensors, 7).version == 7


def test_engine_that_is_gone_is_named_and_the_others_wait_for_nothing(endpoint, group, send, tensors):
    with reserved_port(LOOPBACK) as port:
        gone = Endpoint(f"http://{LOOPBACK}:{port}", endpoint.key)
        with pytest.raises(SlimeError, match=gone.url):
            broadcast(iter(tensors.items()), group, [gone, endpoint], 1)
    assert send(tensors, 2).version == 2


def test_engine_that_dies_is_named_and_nothing_hangs(endpoint, send, tiny_model, tensors, tmp_path):
    """Neither the publisher nor the other engine, which takes the next version."""
    with (
        running_engine(tiny_model, tmp_path / "engine.log") as dying,
        joined("dying", dying.endpoint, endpoint) as both,
    ):
        until_it_dies = half(tensors, partial(os.killpg, dying.pid, signal.SIGKILL))
        with pytest.raises(SlimeError, match=dying.endpoint.url):
            broadcast(until_it_dies, both, [dying.endpoint, endpoint], 1)
    assert send(tensors, 8).version == 8
