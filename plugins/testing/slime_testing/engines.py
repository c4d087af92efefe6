"""Real SGLang engines for tests, and weights to publish to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime import plugins
from slime.config.hf import read_hf_config
from slime.config.schema import Device, SlimeConfig
from slime.engines.scratch import open_rendezvous
from slime.engines.software import Server, software
from slime.net import LOOPBACK
from slime.topology.placement import process_name
from slime.topology.topology import Topology, read_topology

if TYPE_CHECKING:
    import torch


def cpu_config(**sglang: Any) -> SlimeConfig:
    """An engine's part of a CPU run, as `cluster=local` has it; `sglang` goes on top."""
    cfg = SlimeConfig()
    cfg.cluster.device = Device.cpu
    # Below a test's own limit; the first engine of a process waits for the import of SGLang.
    cfg.cluster.start_timeout_s = 250.0
    cfg.rollout.sglang = {
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
        "mem_fraction_static": 0.2,
        "max_total_tokens": 20000,
        "dtype": "float32",
        **sglang,
    }
    return cfg


def topology_at(cfg: SlimeConfig, model_path: Path) -> Topology:
    """Topology of `cfg` for the model at `model_path`."""
    cfg.model.path = str(model_path)
    return read_topology(cfg)


def server(topology: Topology, *which: Any, **options: Any) -> Server:
    """As `Software.server`, on a CPU, and forked from a process that has imported SGLang (`slime_testing.forked`). CUDA
    does not survive a fork; where it is, an engine starts as in a run."""
    import torch

    if torch.cuda.device_count():
        return software(Device.cpu).server(topology, *which, **options)
    from slime_testing.forked import ForkedEngine

    return ForkedEngine(topology, *which, **options)


@contextmanager
def started(servers: Sequence[Server]) -> Iterator[Sequence[Server]]:
    """All of them, which start at the same time, and are stopped after the block."""
    with ExitStack() as stack, ThreadPoolExecutor(len(servers)) as pool:
        for each in servers:
            stack.callback(each.stop)
        for starting in [pool.submit(each.start) for each in servers]:
            starting.result()
        yield servers


@contextmanager
def engine_over_hosts(model_path: Path, folder: Path, hosts: int = 2, **sglang: Any) -> Iterator[list[Server]]:
    """An engine with a process of one rank on each of `hosts` hosts, all of which are this one; logs in `folder`."""
    cfg = cpu_config(tp_size=hosts, **sglang)
    cfg.cluster.num_nodes = hosts
    topology = topology_at(cfg, model_path)
    with open_rendezvous(LOOPBACK, "") as rendezvous:
        logs = [folder / f"{process_name(0, rank)}.log" for rank in range(hosts)]
        processes = [server(topology, 0, rank, rendezvous, host=LOOPBACK, log=log) for rank, log in enumerate(logs)]
        with started(processes):
            yield processes


@contextmanager
def running_engine(model_path: Path, log: Path, *, forked: bool = True, **sglang: Any) -> Iterator[Server]:
    """An engine for the model at `model_path`, stopped afterwards.

    Args:
        forked: by `server`; False: as in a run.
    """
    start = server if forked else software(Device.cpu).server
    cfg = cpu_config(**sglang)
    cfg.cluster.devices_per_node = sglang.get("tp_size", 1)  # all on one host
    engine = start(topology_at(cfg, model_path), host=LOOPBACK, log=log)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def hf_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """A transformers model's weights under their checkpoint names (transformers keeps experts fused in memory)."""
    for name, tensor in model.state_dict().items():
        layer, fused, _ = name.partition("experts.gate_up_proj")
        if fused:
            for expert, matrix in enumerate(tensor):
                gate, up = matrix.chunk(2)
                yield f"{layer}experts.{expert}.gate_proj.weight", gate
                yield f"{layer}experts.{expert}.up_proj.weight", up
        elif name.endswith("experts.down_proj"):
            for expert, matrix in enumerate(tensor):
                yield f"{name.removesuffix('down_proj')}{expert}.down_proj.weight", matrix
        else:
            yield name, tensor


def as_exported(model: Any, folder: Path | str) -> dict[str, torch.Tensor]:
    """The same in the order in which a trainer exports them, to an engine that does not draft.

    Args:
        folder: with the model's config.json.
    """
    hf = read_hf_config(str(folder))
    mapping = plugins.load().models.create(hf["model_type"]).weight_mapping(hf)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    tensors = {name: tensor for name, tensor in hf_tensors(model) if name not in tied}
    names = dict.fromkeys(name for entry in mapping.entries for name in entry.hf)
    assert names.keys() == tensors.keys(), "every tensor is of use to trainer or engine"
    return {name: tensors[name] for name in names if name not in mapping.draft_names}
