"""An engine over two hosts, which are both this one: two processes, a rank each, with data-parallel attention and with
experts over both. Plain tensor parallelism over two hosts is what `tests/test_run_placements.py` runs."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import psutil
import pytest
import torch

from slime.cluster.watch import first_end
from slime.config.hf import read_hf_config
from slime.config.paths import resolve
from slime.errors import SlimeError
from slime_cluster.ray.reaper import wait_until_gone
from slime_sglang.engine.driver.client import SGLangClient
from slime_testing.engines import as_exported, engine_over_hosts
from slime_testing.models import random_model
from slime_testing.publishing import publish
from stack_dumps.blame import suspects
from stack_dumps.dumps import look
from tests.running import GONE_S
from tests.transports import BUCKET, broadcast, joined, publish_by_rank

pytestmark = pytest.mark.slow

VICTIM = "model.layers.1.mlp.experts.3.up_proj.weight"
PROMPTS = [[5, 6, 7], [11, 2, 90, 41, 8], [*range(3, 40)]]
LAYOUT = {"dp_size": 2, "enable_dp_attention": True, "enable_dp_lm_head": True, "moe_dense_tp_size": 1, "ep_size": 2}
TOLERANCE = 1e-5
"""Nats, fp32 on both sides: the sums run in another order; seen are 2e-6."""


@pytest.fixture(scope="module")
def folder():
    return resolve("pkg://slime_plugin_glm4/assets/glm4-moe-lite-tiny")


@pytest.fixture(scope="module")
def processes(folder, tmp_path_factory):
    with engine_over_hosts(folder, tmp_path_factory.mktemp("hosts"), **LAYOUT) as processes:
        yield processes


@pytest.fixture(scope="module")
def model(folder):
    return random_model(read_hf_config(str(folder)), seed=1).eval()


@pytest.fixture(scope="module")
def tensors(model, folder):
    return as_exported(model, folder)


def greedy(endpoint):
    async def request():
        client = SGLangClient(endpoint)
        try:
            sampling = {"max_new_tokens": 24, "ignore_eos": True, "temperature": 0.0}
            return await asyncio.gather(*[client.generate(prompt, sampling) for prompt in PROMPTS])
        finally:
            await client.close()

    return asyncio.run(request())


@torch.no_grad()
def check_parity(endpoint, model):
    """Tokens and log-probs of both data-parallel ranks are those of transformers, which has one."""
    for prompt, completion in zip(PROMPTS, greedy(endpoint), strict=True):
        logits = model(torch.tensor([[*prompt, *completion.tokens]])).logits[0, len(prompt) - 1 : -1]
        wanted = logits.log_softmax(-1).max(-1)
        assert completion.tokens == wanted.indices.tolist()
        torch.testing.assert_close(torch.tensor(completion.logprobs), wanted.values, atol=TOLERANCE, rtol=0)


def test_it_generates_what_was_published(processes, model, tensors):
    first = processes[0].endpoint
    receipt = publish(iter(tensors.items()), [first], 1, BUCKET)
    assert receipt.engines == (first.url,)
    assert receipt.num_bytes == sum(tensor.nbytes for tensor in tensors.values())
    check_parity(first, model)


def test_broadcasts_reach_every_rank(processes, folder):
    first = processes[0].endpoint
    other = random_model(read_hf_config(str(folder)), seed=2).eval()
    with joined("test-hosts", first) as group:
        assert group.group.size() == 3
        broadcast(iter(as_exported(other, folder).items()), group, [first], 2)
    check_parity(first, other)


def test_each_rank_takes_its_own_publishers_memory_and_the_receipt_covers_it(processes, model, tensors):
    first = processes[0].endpoint
    assert publish_by_rank(tensors, first, 3).num_tensors == len(tensors)
    check_parity(first, model)
    with pytest.raises(SlimeError, match=f"'{VICTIM}' arrived with digest"):
        publish_by_rank(tensors, first, 4, damaged=VICTIM)
    with pytest.raises(SlimeError, match="serves 'incomplete' weights"):
        greedy(first)
    publish_by_rank(tensors, first, 5)
    check_parity(first, model)


def test_memory_is_given_back_on_every_host_and_taken_again(processes, model, tensors):
    first = processes[0]
    first.release_memory(["kv_cache", "weights"])
    first.resume_memory(["weights"])
    publish(iter(tensors.items()), [first.endpoint], 6, BUCKET)
    first.resume_memory(["kv_cache"])
    check_parity(first.endpoint, model)


def test_every_process_says_where_it_stands(processes):
    seen = {each.name: each for each in look([], processes[0].log.parent)}
    for name in ("engine-0-scheduler-tp0", "engine-0-node1-scheduler-tp1-dp1"):
        assert "in run_event_loop" in seen[name].stack
    assert "in launch_server" in seen["engine-0-server"].stack
    assert "engine-0-node1-server" in seen


def test_a_rank_of_the_second_host_that_hangs_is_named(processes):
    name, folder = "engine-0-node1-scheduler-tp1-dp1", processes[0].log.parent
    (hung,) = (each.pid for each in look([], folder) if each.name == name)
    os.kill(hung, signal.SIGSTOP)
    try:
        told = suspects(look([], folder, answer_s=1.0), [])
    finally:
        os.kill(hung, signal.SIGCONT)
    assert f"{name} (pid {hung} on {socket.gethostname()}) is stopped (T) and writes no stack" in told


def test_a_rank_that_is_killed_is_named_with_its_host_and_ends_all(processes):
    """Without its own watch the first process would end first, of a collective, and be taken for the cause."""
    first, second = processes
    assert [process.end() for process in processes] == [None, None]
    (scheduler,) = (each.pid for each in look([], first.log.parent) if each.name == "engine-0-node1-scheduler-tp1-dp1")
    leaders = [psutil.Process(process.pid) for process in processes]
    family = [*leaders, *(child for leader in leaders for child in leader.children(recursive=True))]
    os.kill(scheduler, signal.SIGKILL)
    psutil.wait_procs(leaders, timeout=GONE_S)
    ends = {process: process.end(waits=True) for process in (second, first)}
    said = str(first_end(ends.values()))
    assert said.startswith(f"engine-0-node1 (node_rank 1, pid {second.pid} on {socket.gethostname()}): ended")
    assert f"process {scheduler} was killed by SIGKILL" in said
    with pytest.raises(SlimeError, match=str(first.endpoint)):
        greedy(first.endpoint)
    assert wait_until_gone(set(family), GONE_S) == set()
