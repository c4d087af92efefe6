"""A version from several trainer ranks, into a real engine: the weights of one source, and the faults of each."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from slime.config.hf import read_hf_config
from slime.errors import SlimeError
from slime.net import LOOPBACK, Endpoint, join_store, serve_store
from slime.testing.engines import hf_tensors
from slime.testing.models import write_checkpoint
from slime.testing.publishing import publish, publish_over
from slime.testing.ranks import Rank, run_ranks
from slime.types import Receipt
from slime.weights.publisher.broadcast import Broadcast, Sources
from slime.weights.publisher.broadcast_groups import ask_to_join, join_as_source, join_engines, num_ranks
from slime.weights.publisher.transport import results
from slime.weights.shared.bucket import Bucket
from slime.weights.shared.stream import part_of
from tests.transports import BUCKET, CPU, LIMIT_S, half, links_to

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


LAYOUTS = {
    "pp2": ["train.megatron.pipeline_model_parallel_size=2"],
    "tp2": ["train.megatron.tensor_model_parallel_size=2"],
    "dp2": [],
}


@pytest.fixture(scope="module")
def folder(tiny_model, tmp_path_factory):
    """A checkpoint of the model that the session's engine serves."""
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(read_hf_config(str(tiny_model)), folder)
    return folder


def published(rank: Rank, engine: Endpoint, folder: str, layout: list[str]) -> list[Receipt | None]:
    """By every rank of a trainer, two versions. Runs in a rank of its own."""
    from slime.config.compose import compose
    from slime.train.trainer import Trainer
    from slime.weights.publisher.publisher import Publisher

    keys = [f"cluster.{key}=2" for key in ("num_trainers", "devices_per_node")]
    weights = ["weights.transport=broadcast", "weights.num_sources=2"]
    model = [
        "+model=glm4-tiny",
        f"model.path={folder}",
        "model.init=checkpoint",
        "+cluster=local",
        "run.name=published",
    ]
    cfg = compose([*model, *keys, *weights, *layout])
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    publisher = Publisher(cfg, trainer, LOOPBACK, [engine])
    return [publisher.publish(version, 1) for version in (2, 3)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_sources_publish_what_one_does(layout, endpoint, folder):
    wanted = publish(iter(load_file(folder / "model.safetensors").items()), [endpoint], 1, BUCKET)
    receipts, others = run_ranks(published, 2, endpoint, str(folder), LAYOUTS[layout], timeout_s=200)
    assert others == [None, None]
    for version, receipt in zip((2, 3), receipts, strict=True):
        assert receipt.version == version
        assert (receipt.num_tensors, receipt.num_bytes) == (wanted.num_tensors, wanted.num_bytes)
        assert receipt.fingerprint == wanted.fingerprint
        assert receipt.engines == (endpoint.url,)
        assert [name.split(" of ")[0] for name in receipt.rates] == ["trainer rank 0", "trainer rank 1"]
        assert all(rate > 0 for rate in receipt.rates.values())


LEFT: list[dist.ProcessGroup] = []
"""Out of torch's books, but not deleted before the engine has ended: that waits for the end of every broadcast, and
some no engine joins after a fault."""


class FlippedBit(Bucket):
    """Loses a bit of every tensor between its digest and the wire."""

    def fill(self, tensors):
        super().fill(tensors)
        self.memory[0] ^= 1


def second_source(rank: Rank, port: int, num_engine_ranks: int, tensors: dict[str, torch.Tensor], fault: str) -> None:
    """The other source, which sends `tensors` until its fault. Runs in a process of its own."""
    store = join_store(LOOPBACK, port, timedelta(seconds=LIMIT_S))
    group = join_as_source(f"second, {fault}", store, "gloo", num_engine_ranks)
    faults = {"dies": partial(os.kill, os.getpid(), signal.SIGKILL), "fails": fail}
    with ThreadPoolExecutor(1) as pool:
        transport = Broadcast([], pool, (f"second, {fault}", group), CPU, store, among=among(store, fault, place=1))
        if fault == "damages":
            transport.new_bucket = partial(FlippedBit, device=CPU)
        publish_over(transport, half(tensors, faults.get(fault, dict)), 2, BUCKET)


def fail() -> None:
    raise SlimeError("no more", where="export", todo="Nothing.")


def among(store, fault: str, place: int) -> Sources:
    from sglang.srt.utils.common import init_custom_process_group

    ours, name = part_of(store, f"peers, {fault}"), f"peers, {fault}"
    peers = init_custom_process_group(backend="gloo", store=ours, world_size=2, rank=place, group_name=name)
    return Sources(f"publish, {fault}", {f"first, {fault}": 0, f"second, {fault}": 1}, peers)


@contextmanager
def first_source(endpoint: Endpoint, tensors: dict[str, torch.Tensor], fault: str) -> Iterator[Broadcast]:
    """This process, while another is the second source of half of `tensors`."""
    store = serve_store(LOOPBACK)
    links = links_to([endpoint], 2)
    links[0].connect()
    with ThreadPoolExecutor(4) as pool:
        other = pool.submit(run_ranks, second_source, 1, store.port, num_ranks(links), tensors, fault, timeout_s=200)
        group = join_engines(links, pool, f"first, {fault}", store, "gloo")
        results(ask_to_join(links, pool, f"second, {fault}", store, "gloo"))
        members = among(store, fault, place=0)
        yield Broadcast(links, pool, (f"first, {fault}", group), CPU, store, among=members)
        ended = other.exception()
        if fault != "damages":  # of which it may be told before it has ended by itself
            assert (ended is None) is (fault == "none"), ended
    for left in (group, members.group):
        dist.destroy_process_group(left)
        LEFT.append(left)


FAULTS = {
    "none": None,
    "dies": r"second, dies",
    "fails": r"second, fails (gave this version up|could not send its part)",
    "damages": r"tensor '.*' arrived with digest",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_of_another_source_is_named_and_no_half_version_is_served(fault, endpoint, hf_model, tiny_model):
    tensors = dict(hf_tensors(hf_model(tiny_model)))
    whole = publish(iter(tensors.items()), [endpoint], 1, BUCKET)
    names = list(tensors)
    mine, others = ({name: tensors[name] for name in names[start::2]} for start in (0, 1))
    with first_source(endpoint, others, fault) as transport:
        if FAULTS[fault] is None:
            receipt = publish_over(transport, iter(mine.items()), 2, BUCKET)
            assert (receipt.num_tensors, receipt.fingerprint) == (whole.num_tensors, whole.fingerprint)
        else:
            with pytest.raises(SlimeError, match=FAULTS[fault]):
                publish_over(transport, iter(mine.items()), 2, BUCKET)
    assert publish(iter(tensors.items()), [endpoint], 3, BUCKET).fingerprint == whole.fingerprint
