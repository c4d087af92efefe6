"""A version from several trainer ranks, into a real engine: the weights of one source, and the faults of each."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from slime.config.hf import read_hf_config
from slime.errors import SlimeError
from slime.net import LOOPBACK, Endpoint, join_store, serve_store
from slime.types import Receipt
from slime.weights.publisher.handover import results
from slime_sglang.broadcast.groups import ask_to_join, join_as_source, join_engines, num_ranks
from slime_sglang.broadcast.source import Broadcast, Sources
from slime_sglang.broadcast.stream import part_of
from slime_testing.engines import hf_tensors
from slime_testing.models import write_checkpoint
from slime_testing.publishing import publish, publish_over
from slime_testing.ranks import Rank, run_ranks
from tests.transports import BUCKET, CPU, LIMIT_S, half, links_to
from tests.waiting import until
from weight_buckets.bucket import Bucket

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
    from slime.compose.compose import compose
    from slime.topology.topology import read_topology
    from slime.weights.publisher.publisher import Publisher
    from slime_megatron.train.trainer import Trainer

    keys = [f"cluster.{key}=2" for key in ("num_trainers", "devices_per_node")]
    weights = ["weights.transport=broadcast", "weights.num_sources=2"]
    model = [
        "+model=glm4-tiny",
        f"model.path={folder}",
        "model.tokenizer=pkg://slime_plugin_glm4/assets/glm4-tiny",
        "model.init=checkpoint",
        "+cluster=local",
        "run.name=published",
    ]
    cfg = compose([*model, *keys, *weights, *layout])
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    publisher = Publisher(read_topology(cfg), trainer, LOOPBACK)
    return [publisher.publish([engine], version, 1) for version in (2, 3)]


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


ENDS_S = 60
"""Of a publish and its fault: a source that hangs fails its test within this time."""
HERE = "the second source is here"
KEPT: list[object] = []
"""Process groups of a source, which is a process of its own: to delete one waits for the end of every broadcast, and
some no engine joins after a fault. They end with their process."""


class FlippedBit(Bucket):
    """Loses a bit of every tensor between its digest and the wire."""

    def fill(self, tensors):
        super().fill(tensors)
        self.memory[0] ^= 1


def second_source(rank: Rank, port: int, num_engine_ranks: int, tensors: dict[str, torch.Tensor], fault: str) -> None:
    """Sends `tensors` until its fault. Runs in a process of its own."""
    store = join_store(LOOPBACK, port, timedelta(seconds=LIMIT_S))
    store.set(HERE, "1")
    group = join_as_source(f"second, {fault}", store, "gloo", num_engine_ranks)
    faults = {"dies": partial(os.kill, os.getpid(), signal.SIGKILL), "fails": fail}
    members = among(store, fault, place=1)
    KEPT.extend([group, members.group, store])
    with ThreadPoolExecutor(1) as pool:
        transport = Broadcast([], pool, (f"second, {fault}", group), CPU, store, among=members)
        if fault == "damages":
            transport.new_bucket = partial(FlippedBit, device=CPU)
        publish_over(transport, half(tensors, faults.get(fault, dict)), 2, BUCKET)


def first_source(
    rank: Rank, port: int, endpoint: Endpoint, tensors: dict[str, torch.Tensor], fault: str
) -> Receipt | str:
    """The receipt of both sources' tensors, or what is said of the fault. Runs in a process of its own."""
    store = join_store(LOOPBACK, port, timedelta(seconds=LIMIT_S))
    links = links_to([endpoint], 2)
    links[0].connect()
    with ThreadPoolExecutor(4) as pool:
        group = join_engines(links, pool, f"first, {fault}", store, "gloo")
        results(ask_to_join(links, pool, f"second, {fault}", store, "gloo"))
        members = among(store, fault, place=0)
        KEPT.extend([group, members.group, store])
        transport = Broadcast(links, pool, (f"first, {fault}", group), CPU, store, among=members)
        try:
            return publish_over(transport, iter(tensors.items()), 2, BUCKET)
        except SlimeError as error:
            return str(error)


def fail() -> None:
    raise SlimeError("no more", where="export", todo="Nothing.")


def among(store, fault: str, place: int) -> Sources:
    from sglang.srt.utils.common import init_custom_process_group

    ours, name = part_of(store, f"peers, {fault}"), f"peers, {fault}"
    peers = init_custom_process_group(backend="gloo", store=ours, world_size=2, rank=place, group_name=name)
    ours.set(f"met {place}", "")
    ours.wait(["met 0", "met 1"])  # one that dies before the other has met it would end that meeting
    return Sources(f"publish, {fault}", {f"first, {fault}": 0, f"second, {fault}": 1}, peers)


FAULTS = {
    "none": None,
    "dies": r"second, dies",
    "fails": r"second, fails (gave this version up|could not send its part|broke off)",  # whichever is seen first
    "damages": r"tensor '.*' arrived with digest",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_of_another_source_is_named_and_no_half_version_is_served(fault, endpoint, hf_model, tiny_model):
    tensors = dict(hf_tensors(hf_model(tiny_model)))
    whole = publish(iter(tensors.items()), [endpoint], 1, BUCKET)
    names = list(tensors)
    mine, others = ({name: tensors[name] for name in names[start::2]} for start in (0, 1))
    store, [link] = serve_store(LOOPBACK), links_to([endpoint], 2)
    link.connect()
    with ThreadPoolExecutor(1) as pool:
        second = (second_source, 1, store.port, num_ranks([link]), others, fault)
        other = pool.submit(partial(run_ranks, *second, timeout_s=ENDS_S))
        until(lambda: store.check([HERE]), ENDS_S)  # two threads must not start ranks at one moment
        [said] = run_ranks(first_source, 1, store.port, endpoint, mine, fault, timeout_s=ENDS_S)
        ended = other.exception()
    if FAULTS[fault] is None:
        assert (said.num_tensors, said.fingerprint) == (whole.num_tensors, whole.fingerprint)
    else:
        assert re.search(FAULTS[fault], str(said)), said
    if fault != "damages":  # of which it may be told before it has ended by itself
        assert (ended is None) is (fault == "none"), ended
    assert publish(iter(tensors.items()), [endpoint], 3, BUCKET).fingerprint == whole.fingerprint
