"""A real server of the tiny model: versions go in with receipts, and what it says of its tokens is transformers'."""

import asyncio
import os
import signal
import time

import pytest

from slime.config.hf import read_hf_config
from slime.config.paths import resolve
from slime.config.schema import Device
from slime.engine_client.client import EngineGone, FinishReason
from slime.engines.software import software
from slime.errors import SlimeError
from slime.net import LOOPBACK, Endpoint, new_key
from slime_testing import models
from slime_testing.engines import cpu_config, hf_tensors, topology_at
from slime_testing.generation import PROMPT, difference
from slime_testing.publishing import publish

MODEL = "pkg://slime_plugin_glm4/assets/glm4-tiny"
BUCKET_BYTES = 1 << 16
PLAIN = software(Device.cpu, "plain")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    log = tmp_path_factory.mktemp("plain") / "engine.log"
    server = PLAIN.server(topology_at(cpu_config(), resolve(MODEL)), host=LOOPBACK, log=log)
    server.start()
    yield server
    server.stop()


def asked(endpoint, *requests, work=None):
    """Completions of requests that are made at once; `work` is done with the client meanwhile."""

    async def ask():
        client = PLAIN.client(endpoint, 60.0)
        try:
            waiting = [asyncio.create_task(client.generate(PROMPT, sampling)) for sampling in requests]
            if work:
                await work(client)
            return await asyncio.gather(*waiting)
        finally:
            await client.close()

    return asyncio.run(ask())


def published(server, version):
    model = models.random_model(read_hf_config(MODEL), seed=version).eval()
    receipt = publish(iter(hf_tensors(model)), [server.endpoint], version, BUCKET_BYTES)
    assert (receipt.version, receipt.num_tensors) == (version, len(model.state_dict()))
    return model


def test_it_generates_with_what_was_published_last(server):
    for version in (1, 2):
        model = published(server, version)
        [one, again, other] = asked(
            server.endpoint,
            *({"max_new_tokens": 24, "sampling_seed": seed, "temperature": 1.0} for seed in (1, 1, 2)),
        )
        assert (one.weight_version, one.finish_reason) == (version, FinishReason.LENGTH)
        assert one.tokens == again.tokens != other.tokens
        assert difference(model, one) <= 1e-5


def test_a_version_with_other_bytes_or_a_tensor_too_few_is_none(server):
    tensors = list(hf_tensors(models.random_model(read_hf_config(MODEL), seed=3)))
    with pytest.raises(SlimeError, match="no bytes for"):
        publish(iter(tensors[1:]), [server.endpoint], 3, BUCKET_BYTES)
    with pytest.raises(SlimeError, match="no version has been published"):
        asked(server.endpoint, {"max_new_tokens": 1})
    publish(iter(tensors), [server.endpoint], 3, BUCKET_BYTES)
    assert asked(server.endpoint, {"max_new_tokens": 1})[0].weight_version == 3


def test_an_abort_ends_what_runs_and_what_waits(server):
    published(server, 4)

    async def abort(client):
        while (await client.load())[0] < 2:
            await asyncio.sleep(0.01)
        await client.abort_all()

    endless = {"max_new_tokens": 100_000}
    for completion in asked(server.endpoint, endless, endless, work=abort):
        assert completion.finish_reason is FinishReason.ABORT
        assert len(completion.tokens) == len(completion.logprobs) < 100_000


def test_a_stranger_is_refused_and_an_end_is_told(server):
    with pytest.raises(SlimeError, match="401"):
        asked(Endpoint(server.endpoint.url, new_key()), {"max_new_tokens": 1})
    assert server.end() is None
    os.kill(server.pid, signal.SIGKILL)
    while not (end := server.end()):
        time.sleep(0.01)
    assert end.killed
    with pytest.raises(EngineGone):
        asked(server.endpoint, {"max_new_tokens": 1})
