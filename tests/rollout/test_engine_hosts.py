"""An engine over two hosts, which are both this one: two processes, a rank each."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psutil
import pytest
import torch

from slime.errors import SlimeError
from slime.net import LOOPBACK, serve_store
from slime.observe.hang import look
from slime.rollout.client import EngineClient
from slime.rollout.engine import DYING_S
from slime.testing.engines import engine_over_hosts, hf_tensors
from slime.weights.bucket import SharedBucket
from slime.weights.engine_link import EngineLink
from slime.weights.publish import publish, publish_over
from slime.weights.transport import Broadcast, SharedMemory, join_engines

pytestmark = pytest.mark.slow

BUCKET = 1 << 18
NAME = "test-hosts"
VICTIM = "model.layers.1.self_attn.k_proj.weight"
PROMPTS = [[5, 6, 7], [11, 2, 90, 41, 8], [*range(3, 40)]]


@pytest.fixture(scope="module")
def processes(tiny_model, tmp_path_factory):
    with engine_over_hosts(tiny_model, tmp_path_factory.mktemp("hosts")) as processes:
        yield processes


@pytest.fixture(scope="module")
def tensors(hf_model, tiny_model):
    return dict(hf_tensors(hf_model(tiny_model)))


def greedy(endpoint):
    async def request():
        client = EngineClient(endpoint)
        try:
            sampling = {"max_new_tokens": 24, "ignore_eos": True, "temperature": 0.0}
            return await asyncio.gather(*[client.generate(prompt, sampling) for prompt in PROMPTS])
        finally:
            await client.close()

    return asyncio.run(request())


def check_same(one, other):
    assert [generation.tokens for generation in one] == [generation.tokens for generation in other]
    for mine, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(torch.tensor(mine.logprobs), torch.tensor(theirs.logprobs), atol=1e-5, rtol=0)


def test_it_publishes_and_generates_like_one_process(processes, endpoint, tensors):
    first = processes[0].endpoint
    receipt = publish(iter(tensors.items()), [endpoint, first], 1, BUCKET)
    assert receipt.engines == (endpoint.url, first.url)
    assert receipt.num_bytes == sum(tensor.nbytes for tensor in tensors.values())
    check_same(greedy(first), greedy(endpoint))


def test_broadcasts_reach_every_rank(processes, endpoint, tensors):
    first, store = processes[0].endpoint, serve_store(LOOPBACK)
    links = [EngineLink(first, 2, 60)]
    links[0].connect()
    with ThreadPoolExecutor(1) as pool:
        group = join_engines(links, pool, NAME, store, "gloo")
        assert group.size() == 3
        transport = Broadcast(links, pool, (NAME, group), torch.device("cpu"), store)
        publish_over(transport, iter(tensors.items()), 2, BUCKET)
    publish(iter(tensors.items()), [endpoint], 2, BUCKET)
    check_same(greedy(first), greedy(endpoint))


class Twins(SharedBucket):
    """The buckets of two publishers, each in memory of its own; that of the second may lose a bit of VICTIM."""

    def __init__(self, capacity, *, loses_a_bit):
        super().__init__(capacity)
        self.twin, self.loses_a_bit = SharedBucket(capacity), loses_a_bit

    def fill(self, tensors):
        super().fill(tensors)
        self.twin.fill(tensors)
        for meta in self.twin.metadata if self.loses_a_bit else []:
            if meta.name == VICTIM:
                self.twin.memory[meta.start_idx + 7] ^= 1

    def __exit__(self, *raised):
        super().__exit__(*raised)
        self.twin.__exit__(*raised)


class TwoPublishers(SharedMemory):
    """Stands for the publishers of two ranks, which are two processes on their hosts: a payload for each rank."""

    def send(self, bucket, note):
        self.second = bucket.twin.payload(note)
        super().send(bucket, note)

    def _gather(self, payload):
        return [payload, self.second]


def publish_by_rank(tensors, endpoint, version, *, loses_a_bit):
    with ThreadPoolExecutor(1) as pool:
        links = [EngineLink(endpoint, version, 60)]
        transport = TwoPublishers(links, pool, partial(Twins, loses_a_bit=loses_a_bit))
        return publish_over(transport, iter(tensors.items()), version, BUCKET)


def test_each_rank_takes_its_own_publishers_memory_and_the_receipt_covers_it(processes, tensors):
    first = processes[0].endpoint
    assert publish_by_rank(tensors, first, 3, loses_a_bit=False).num_tensors == len(tensors)
    before = greedy(first)
    with pytest.raises(SlimeError, match=f"'{VICTIM}' arrived with digest"):
        publish_by_rank(tensors, first, 4, loses_a_bit=True)
    with pytest.raises(SlimeError, match="serves 'incomplete' weights"):
        greedy(first)
    publish_by_rank(tensors, first, 5, loses_a_bit=False)
    check_same(greedy(first), before)


def test_memory_is_given_back_on_every_host_and_taken_again(processes, tensors):
    first = processes[0]
    publish(iter(tensors.items()), [first.endpoint], 6, BUCKET)
    before = greedy(first.endpoint)
    first.release_memory(["kv_cache", "weights"])
    first.resume_memory(["weights"])
    publish(iter(tensors.items()), [first.endpoint], 7, BUCKET)
    first.resume_memory(["kv_cache"])
    check_same(greedy(first.endpoint), before)


def test_every_process_says_where_it_stands(processes):
    seen = {each.name: each for each in look([], processes[0].log.parent)}
    for name in ("engine-0-scheduler-tp0", "engine-0-node1-scheduler-tp1"):
        assert "in run_event_loop" in seen[name].stack
    assert "in launch_server" in seen["engine-0-server"].stack
    assert "engine-0-node1-server" in seen


def test_a_rank_that_is_killed_is_named_with_its_host_and_ends_all(processes):
    """Without its own watch the first process would end first, of a collective, and be taken for the cause."""
    first, second = processes
    assert [process.end() for process in processes] == [None, None]
    (scheduler,) = (each.pid for each in look([], first.log.parent) if each.name == "engine-0-node1-scheduler-tp1")
    leaders = [psutil.Process(process.pid) for process in processes]
    family = [*leaders, *(child for leader in leaders for child in leader.children(recursive=True))]
    os.kill(scheduler, signal.SIGKILL)
    ends = {process: process.end(10 * DYING_S) for process in (second, first)}
    assert ends[second].at < ends[first].at
    said = str(ends[second].error)
    assert said.startswith(f"engine-0-node1 (node_rank 1, pid {second.pid} on {socket.gethostname()}): ended")
    assert f"scheduler {scheduler} was killed by SIGKILL" in said
    with pytest.raises(SlimeError, match=str(first.endpoint)):
        greedy(first.endpoint)
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
