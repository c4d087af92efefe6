"""The contract test of a transport, to be called from a plugin's own tests.

from slime_testing.engines import running_engine
from slime_testing.transports import check_transport

def test_contract(model: Path, tmp_path: Path) -> None:
    with running_engine(model, tmp_path / "engine.log") as engine:
        check_transport("mailbox", engine.endpoint, model, mailbox=str(tmp_path))
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
import torch.distributed as dist

from slime import plugins
from slime.config.extended import extended
from slime.config.hf import read_hf_config
from slime.config.schema import EngineGroupConfig, SlimeConfig, WeightsConfig
from slime.net import LOOPBACK, Endpoint
from slime.topology.links import Verb
from slime.topology.topology import Topology
from slime.topology.transport_protocol import StoringTransport, Transport
from slime.types import Receipt
from slime.weights.publisher.engine_link import EngineLink
from slime.weights.publisher.handover import Sender, TrainerSide
from slime_testing.engines import cpu_config, hf_tensors, topology_at
from slime_testing.models import transformers_model
from slime_testing.plugins import check_light
from slime_testing.publishing import TIMEOUT_S, publish_over
from weight_buckets.views import Named

BUCKET_BYTES = 1 << 18
VERSION_BYTES = 10**9
"""What the plan is asked about."""


class _GivenUpError(Exception):
    """Raised in the middle of a version."""


def check_transport(name: str, engine: Endpoint, model: Path, **keys: Any) -> None:
    """Assert that a transport is well installed, and that it brings versions to a real engine or gives them up.

    The engine gets two versions of random weights, one that ends in the middle, and a last one. Each that is whole must
    come back with a receipt; after the one that ended, the engine must not serve its number.

    Args:
        engine: of one rank, for `model`.
        model: HF folder with config.json.
        keys: of the section `weights`, which the transport adds.

    Raises:
        AssertionError: a part of the contract is broken; says which.
        SlimeError: the transport is not installed, or a publish failed.
    """
    registry = plugins.load().transports
    check_light(registry.get(name))
    transport = registry.create(name)
    assert isinstance(transport, Transport), f"transport '{name}' lacks a part of its protocol"
    cfg = _config(name, keys)
    topology = topology_at(cfg, model)
    assert list(transport.problems(topology)) == [], "the run of this check cannot publish so"
    _check_plan(transport, topology)
    with _process_group():
        sender = resolve_name(transport.sender)(TrainerSide(cfg, torch.device("cpu"), LOOPBACK, True, None, (0,)))
        _check_versions(sender, engine, model)


def _config(name: str, keys: dict[str, Any]) -> SlimeConfig:
    cfg = cpu_config()
    cfg.cluster.num_trainers = 1
    cfg.cluster.devices_per_node = 2
    cfg.rollout.engines = {"default": EngineGroupConfig(devices=1, devices_per_engine=1)}
    cfg.weights = extended(WeightsConfig)(transport=name, **keys)
    return cfg


def _check_plan(transport: Transport, topology: Topology) -> None:
    links = list(transport.links(topology, VERSION_BYTES))
    assert links, "the plan shows what carries a version: links() is empty"
    assert {link.verb for link in links} == {Verb.hand_over}, "links() tells how versions reach engines, nothing else"
    rate = transport.copy_rate
    assert rate is None or rate > 0, f"copy_rate is {rate}, no bytes/s"
    if isinstance(transport, StoringTransport):
        what, num_bytes = transport.stored(topology.weights, VERSION_BYTES)
        assert what, "stored() names what the folder holds"
        assert num_bytes >= VERSION_BYTES, "the folder holds a version at least"
        assert transport.kept(topology.weights, VERSION_BYTES) >= 0


@contextmanager
def _process_group() -> Iterator[None]:
    """Of this process alone, unless there is one: senders are made on every rank of a trainer."""
    if dist.is_initialized():
        yield
        return
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _check_versions(sender: Sender, engine: Endpoint, model: Path) -> None:
    first, second, third, last = range(1, 5)
    built = transformers_model(read_hf_config(str(model)))
    tensors = [(name, tensor.detach()) for name, tensor in hf_tensors(built)]
    for version in (first, second):
        _check_receipt(_publish(sender, engine, version, iter(tensors)), version, tensors)
        tensors = [(name, tensor * 1.5) for name, tensor in tensors]

    def ending_early() -> Iterator[Named]:
        yield from tensors[: len(tensors) // 2]
        raise _GivenUpError

    try:
        _publish(sender, engine, third, ending_early())
    except _GivenUpError:
        pass
    else:
        raise AssertionError("the handover hides what ended a version early")
    assert EngineLink(engine, last, TIMEOUT_S).weight_version() != str(third), "a part of a version is served"
    _check_receipt(_publish(sender, engine, last, iter(tensors)), last, tensors)
    assert EngineLink(engine, last, TIMEOUT_S).weight_version() == str(last)


def _publish(sender: Sender, engine: Endpoint, version: int, tensors: Iterator[Named]) -> Receipt:
    links = [EngineLink(engine, version, TIMEOUT_S)]
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(2))
        handover = sender.begin(version, links, pool, (0,))
        assert handover is not None, "rank 0 serves the engine, so it has something to hand over"
        return publish_over(handover, tensors, version, BUCKET_BYTES)


def _check_receipt(receipt: Receipt, version: int, tensors: list[Named]) -> None:
    assert receipt.version == version
    assert (receipt.num_tensors, receipt.num_bytes) == (len(tensors), sum(tensor.nbytes for _, tensor in tensors))
    assert receipt.num_bytes_sent > 0, "what was sent or written is counted"
