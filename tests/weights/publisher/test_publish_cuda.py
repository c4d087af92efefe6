"""Weights by CUDA IPC into a real engine on the same GPU, while the engine's memory comes and goes."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from slime.config.schema import Device, Placement, SlimeConfig
from slime.errors import SlimeError
from slime.net import LOOPBACK
from slime_sglang.engine.driver.process import EngineProcess
from slime_testing.engines import hf_tensors, topology_at
from slime_testing.publishing import publish
from tests.transports import BUCKET, PROMPT, VICTIM, flip_bit, generate
from weight_buckets.bucket import CudaBucket

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(400)]

TOLERANCE = 0.05
"""Nats, bf16 on both sides: seen are 0.004."""


@pytest.fixture(scope="module")
def model(hf_model, tiny_model):
    return hf_model(tiny_model).to("cuda", torch.bfloat16)


@pytest.fixture(scope="module")
def engine(tiny_model, tmp_path_factory):
    cfg = SlimeConfig()
    cfg.cluster.device, cfg.cluster.placement = Device.cuda, Placement.colocated
    cfg.rollout.sglang = {
        "attention_backend": "triton",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "mem_fraction_static": 0.3,
        "dtype": "bfloat16",
        "cuda_graph_max_bs_decode": 8,
    }
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    process = EngineProcess(topology_at(cfg, tiny_model), host=LOOPBACK, log=log)
    process.start()
    yield process
    process.stop()


def send(engine, model, version, bucket_type=CudaBucket):
    bucket = partial(bucket_type, device=torch.device("cuda", 0))
    return publish(hf_tensors(model), [engine.endpoint], version, BUCKET, bucket_type=bucket)


def check_parity(engine, model, version):
    completion = generate(engine.endpoint, 16)
    assert completion.weight_version == version
    with torch.no_grad():
        logits = model(torch.tensor([[*PROMPT, *completion.tokens]], device="cuda")).logits[0, len(PROMPT) - 1 : -1]
    expected = logits.float().log_softmax(-1).cpu().gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=TOLERANCE, rtol=0)


def test_engine_serves_what_was_published(engine, model):
    receipt = send(engine, model, 1)
    assert receipt.num_bytes == sum(tensor.nbytes for _, tensor in hf_tensors(model))
    check_parity(engine, model, 1)


def test_memory_goes_and_comes_back(engine, model):
    send(engine, model, 2)
    used = [used_gib()]
    engine.release_memory(["kv_cache", "weights"])
    used.append(used_gib())
    engine.resume_memory(["weights"])
    send(engine, model, 3)
    engine.resume_memory(["kv_cache"])
    used.append(used_gib())
    assert used[1] < used[0] - 10, "three tenths of the GPU are the engine's"
    assert used[2] == pytest.approx(used[0], abs=1)
    check_parity(engine, model, 3)


def used_gib():
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**30


def test_publisher_keeps_no_memory(engine, model):
    send(engine, model, 4)
    before = torch.cuda.memory_allocated()
    send(engine, model, 5)
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() <= before


class FlippedBit(CudaBucket):
    def payload(self, note):
        flip_bit(self)
        return super().payload(note)


def test_flipped_bit_is_named_and_mended_by_the_next_publish(engine, model):
    send(engine, model, 6)
    with pytest.raises(SlimeError, match=rf"'{VICTIM}' arrived with digest"):
        send(engine, model, 7, FlippedBit)
    send(engine, model, 8)
    check_parity(engine, model, 8)
