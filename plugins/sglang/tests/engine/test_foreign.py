"""Who may change what an engine serves: its run, by a publish, and nobody else."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import pickle
import urllib.error
import urllib.request

import psutil
import pytest
import torch

from slime.errors import SlimeError
from slime.net import LOOPBACK, Secret
from slime_sglang.engine.frames import GENERATE
from slime_sglang.engine.load_plan import ReceivedBucket
from slime_testing.engines import hf_tensors
from slime_testing.publishing import publish
from tests.transports import generate
from weight_buckets.bucket import SharedBucket

pytestmark = pytest.mark.slow

OPEN = ("/health", "/metrics")
"""What SGLang answers to everybody begins with one of these."""


@pytest.fixture(scope="module")
def tensors(hf_model, tiny_model):
    return dict(hf_tensors(hf_model(tiny_model)))


@pytest.fixture
def served(endpoint, tensors):
    """The engine, serving `tensors` as version 7."""
    publish(iter(tensors.items()), [endpoint], 7, 1 << 26)
    return endpoint


@pytest.fixture(scope="module")
def others(hf_model, tiny_model, tmp_path_factory):
    """An HF folder with other weights of the same shapes."""
    folder = tmp_path_factory.mktemp("others")
    hf_model(tiny_model, seed=1).save_pretrained(folder)
    return folder


def ask(endpoint, path, body=None, method="POST"):
    """Status and text of the answer to one request."""
    data = None if method == "GET" else json.dumps(body or {}).encode()
    headers = endpoint.headers | {"Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(endpoint.url + path, data, headers, method=method)
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_without_its_key_an_engine_does_nothing(served):
    stranger = dataclasses.replace(served, key=Secret("0" * 64))
    _, text = ask(served, "/openapi.json", method="GET")
    routes = [(path, method) for path, methods in json.loads(text)["paths"].items() for method in methods]
    asked = [(path, method.upper()) for path, method in routes if not path.startswith(OPEN)] + [(GENERATE, "POST")]
    assert {"/generate", "/abort_request", "/pause_generation", "/update_weights_from_disk"} <= dict(asked).keys()
    answers = {(path, method): ask(stranger, path, method=method)[0] for path, method in asked}
    assert {route: status for route, status in answers.items() if status not in (401, 403)} == {}
    with pytest.raises(SlimeError, match="status 401"):
        generate(stranger)
    assert generate(served).weight_version == 7


def test_nobody_else_sees_the_key_or_reaches_the_engine(engine, served):
    family = [process for process in psutil.process_iter() if in_group(process, engine.pid)]
    assert len(family) >= 2
    shown = [*(text for process in family for text in (*process.cmdline(), *process.environ().values()))]
    assert not any(served.key in text for text in shown)
    assert served.key not in engine.log.read_text()
    assert "api_key='***'" in engine.log.read_text(), "SGLang logs its arguments"
    listening = {
        connection.laddr.ip
        for process in family
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {LOOPBACK}


def in_group(process, group):
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


@pytest.mark.parametrize("version", [None, "8"])
def test_weights_from_a_folder_are_refused_and_change_nothing(served, others, version):
    before = generate(served, temperature=0.0)
    body = {"model_path": str(others), "load_format": "auto", "weight_version": version}
    status, text = ask(served, "/update_weights_from_disk", body)
    assert status == 400
    assert "only a publish of slime's may change weights" in text
    after = generate(served, temperature=0.0)
    assert (after.weight_version, after.tokens) == (7, before.tokens)


@pytest.mark.parametrize("way", ["tensor", "distributed"])
def test_tensors_without_a_note_are_refused_and_leave_no_number(served, tensors, way):
    before = generate(served, temperature=0.0)
    with SharedBucket(1 << 26) as bucket:
        bucket.fill([(name, torch.zeros_like(tensor)) for name, tensor in tensors.items()])
        plain = ReceivedBucket.of(bucket.memory, bucket.header).for_sglang
        without_note = pickle.dumps(plain | {"flattened_tensor": bucket._handle()})
        bodies = {
            "tensor": {
                "serialized_named_tensors": [base64.b64encode(without_note).decode()],
                "load_format": "flattened_bucket",
            },
            "distributed": {"names": ["a"], "dtypes": ["float32"], "shapes": [[1]], "group_name": "any"},
        }
        status, text = ask(served, f"/update_weights_from_{way}", bodies[way] | {"weight_version": "8"})
    assert status == 400
    assert "only a publish of slime's may change weights" in text
    with pytest.raises(SlimeError, match="serves 'foreign' weights"):
        generate(served)
    publish(iter(tensors.items()), [served], 7, 1 << 26)
    assert generate(served, temperature=0.0).tokens == before.tokens


def test_a_number_without_a_publish_is_none(served):
    assert ask(served, "/update_weight_version", {"new_version": "8"})[0] == 200
    with pytest.raises(SlimeError, match="serves 'foreign' weights"):
        generate(served)
