"""Weights by broadcast into a real engine: the same receipts, and the same faults, as through memory."""

from __future__ import annotations

import functools
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from slime.errors import SlimeError
from slime.net import LOOPBACK, Endpoint, free_port, serve_store
from slime.testing.engines import hf_tensors, running_engine
from slime.testing.publishing import publish, publish_over
from slime.weights.publisher.broadcast import Broadcast
from slime.weights.publisher.broadcast_groups import join_engines
from slime.weights.publisher.engine_link import EngineLink
from slime.weights.publisher.transport import results
from slime.weights.shared.bucket import Bucket

BUCKET = 1 << 18
NAME = "test-weights"
the_store = functools.cache(serve_store)
VICTIM = "model.layers.1.self_attn.k_proj.weight"


@pytest.fixture(scope="module")
def tensors(hf_model, tiny_model):
    return dict(hf_tensors(hf_model(tiny_model)))


@pytest.fixture(scope="module")
def group(endpoint):
    """The process group of this process and the session's engine."""
    links = [EngineLink(endpoint, 0, 60)]
    links[0].connect()
    with ThreadPoolExecutor(1) as pool:
        yield join_engines(links, pool, NAME, the_store(LOOPBACK), "gloo")


def broadcast(tensors, group, endpoint, version, bucket_type=Bucket, name=NAME):
    with ThreadPoolExecutor(1) as pool:
        links = [EngineLink(endpoint, version, 60)]
        transport = Broadcast(links, pool, (name, group), torch.device("cpu"), the_store(LOOPBACK))
        transport.new_bucket = partial(bucket_type, device=torch.device("cpu"))
        return publish_over(transport, iter(tensors.items()), version, BUCKET)


@pytest.mark.slow
def test_receipt_is_that_of_shared_memory(endpoint, group, tensors):
    shared = publish(iter(tensors.items()), [endpoint], 1, BUCKET)
    receipt = broadcast(tensors, group, endpoint, 2)
    assert receipt.version == 2
    assert receipt.num_bytes == sum(tensor.nbytes for tensor in tensors.values())
    assert (receipt.num_tensors, receipt.fingerprint) == (shared.num_tensors, shared.fingerprint)
    num_keys = the_store(LOOPBACK).num_keys()
    broadcast(tensors, group, endpoint, 3)
    assert the_store(LOOPBACK).num_keys() == num_keys, "nothing of a version stays"


class FlippedBit(Bucket):
    """Memory that loses a bit of VICTIM behind the publisher's back, between its digest and the wire."""

    def fill(self, tensors):
        super().fill(tensors)
        for meta in self.metadata:
            if meta.name == VICTIM:
                self.memory[meta.start_idx + 7] ^= 1


FAULTS = {
    "flipped bit": (dict, FlippedBit, rf"'{VICTIM}' arrived with digest"),
    "left out": (lambda tensors: {name: x for name, x in tensors.items() if name != VICTIM}, Bucket, VICTIM),
    "extra": (
        lambda tensors: {**tensors, "stranger.weight": torch.zeros(3, 3)},
        Bucket,
        r"'stranger.weight'.* no place",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("change", "bucket_type", "message"), FAULTS.values(), ids=FAULTS)
def test_fault_is_named_and_mended_by_the_next_publish(endpoint, group, tensors, change, bucket_type, message):
    broadcast(tensors, group, endpoint, 1)
    with pytest.raises(SlimeError, match=message):
        broadcast(change(tensors), group, endpoint, 2, bucket_type)
    assert broadcast(tensors, group, endpoint, 3).version == 3


@pytest.mark.slow
def test_export_that_fails_lets_the_engine_go(endpoint, group, tensors):
    class Tensors(dict):
        def items(self):
            yield from list(super().items())[: len(self) // 2]
            raise SlimeError("no more", where="export", todo="Nothing.")

    with pytest.raises(SlimeError, match="no more"):
        broadcast(Tensors(tensors), group, endpoint, 4)
    assert broadcast(tensors, group, endpoint, 5).version == 5


@pytest.mark.slow
def test_engine_that_does_not_leave_is_not_waited_for(engine, group, tensors):
    """Stopped, it answers as one that waits for a dead other under NCCL: not at all. The group is of no use then."""
    links = [EngineLink(engine.endpoint, 0, 60)]
    links[0].connect()
    with ThreadPoolExecutor(1) as pool:
        left = join_engines(links, pool, "left", the_store(LOOPBACK), "gloo")

    class Tensors(dict):
        def items(self):
            yield from list(super().items())[: len(self) // 2]
            os.killpg(engine.pid, signal.SIGSTOP)
            raise SlimeError("no more", where="export", todo="Nothing.")

    start = time.monotonic()
    try:
        with pytest.raises(SlimeError, match="no more"):
            broadcast(Tensors(tensors), left, engine.endpoint, 6, name="left")
    finally:
        os.killpg(engine.pid, signal.SIGCONT)
    assert time.monotonic() - start < 20, "its request may take 60 s"
    assert broadcast(tensors, group, engine.endpoint, 7).version == 7


@pytest.mark.slow
def test_engine_that_is_gone_is_named_and_the_others_wait_for_nothing(endpoint, group, tensors):
    gone = Endpoint(f"http://{LOOPBACK}:{free_port(LOOPBACK)}", endpoint.key)
    with ThreadPoolExecutor(2) as pool:
        links = [EngineLink(each, 1, 60) for each in (gone, endpoint)]
        transport = Broadcast(links, pool, (NAME, group), torch.device("cpu"), the_store(LOOPBACK))
        with pytest.raises(SlimeError, match=gone.url):
            publish_over(transport, iter(tensors.items()), 1, BUCKET)
    start = time.monotonic()
    assert broadcast(tensors, group, endpoint, 2).version == 2
    assert time.monotonic() - start < 20, "it would have waited for 60 s"


@pytest.mark.slow
def test_engine_that_dies_is_named_and_nothing_hangs(endpoint, group, tiny_model, tensors, tmp_path):
    """Neither the publisher nor the other engine, which takes the next version."""
    with running_engine(tiny_model, tmp_path / "engine.log") as dying, ThreadPoolExecutor(2) as pool:
        links = [EngineLink(each, 1, 60) for each in (dying.endpoint, endpoint)]
        results([pool.submit(link.connect) for link in links])
        own = join_engines(links, pool, "dying", the_store(LOOPBACK), "gloo")
        transport = Broadcast(links, pool, ("dying", own), torch.device("cpu"), the_store(LOOPBACK))

        def half_then_kill():
            for index, named in enumerate(tensors.items()):
                if index == len(tensors) // 2:
                    os.killpg(dying.pid, signal.SIGKILL)
                yield named

        with pytest.raises(SlimeError, match=dying.endpoint.url):
            publish_over(transport, half_then_kill(), 1, BUCKET)
    assert broadcast(tensors, group, endpoint, 8).version == 8
