"""What it costs to hand new weights to the engines, receipt included, and what the wires alone would take.

    python benchmarks/publish.py                                                    # glm4-tiny on this machine
    python benchmarks/publish.py +model=glm4-9b-trial +cluster=h200x1               # by CUDA IPC
    python benchmarks/publish.py +model=glm4-9b-trial +cluster=h200x4-split         # by NCCL broadcast
    python benchmarks/publish.py +model=glm4-9b-trial +cluster=h200x4-split weights.transport=disk # through files
    python benchmarks/publish.py --buckets 1024,256 ...                             # MiB; default: weights.bucket_mb
    python benchmarks/publish.py weights.transport=broadcast weights.num_sources=2 ...   # and the rate of each source

Starts trainers and engines as a run does, without generating or training, and publishes again and again, with buckets
of one size after the other. The first publish of each size is left out: it takes memory, and the very first opens
connections and process groups. Where weights are broadcast, a bare broadcast of buckets of the same sizes between the
first trainer's device and as many more as the engines have is measured beforehand.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from machine import conditions

from slime.cluster.device_sharing import DeviceSharing
from slime.cluster.group import Cluster, open_cluster
from slime.cluster.ray_starter import ray_here
from slime.compose.compose import compose
from slime.config.schema import Device, SlimeConfig
from slime.topology.topology import Topology, read_topology
from slime.topology.transport import BROADCAST
from slime.train.rank import TrainerRank
from slime.types import Receipt

LAPTOP = ["+model=glm4-tiny", "+cluster=local"]
REST = ["run.num_steps=1", "reward=arithmetic", "data.path=pkg://slime_rewards.math/data/arithmetic-train.jsonl"]
NUM_PUBLISHES, NUM_BROADCASTS = 5, 10
PROMISED_S, PROMISED_SHARE, PROMISED_OF_SEVERAL = 1.0, 0.7, 0.8
"""Of 9 B on GPUs: colocated, of a bare broadcast, and of those of several sources together."""


@dataclass(frozen=True)
class Measured:
    """Publishes with buckets of one size.

    Attributes:
        receipt: of the last one.
        seconds: mean by phase.
        residue: GiB that the trainers left on their devices.
        added: GiB that publishing took at most on each trainer's own device.
    """

    receipt: Receipt
    seconds: dict[str, float]
    residue: dict[str, float]
    added: dict[str, float]


def bare_broadcast(topology: Topology, sizes: Sequence[int]) -> list[float]:
    """GB/s at which as many devices as there are sources send buckets at once, each to as many others as the engines
    have; for each of the sizes, in MiB."""
    num_sources = len(topology.sources)
    world_size = num_sources + sum(group.devices for group in topology.groups)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_broadcast, (world_size, folder, sizes, topology.cluster.device, num_sources), nprocs=world_size)
        return [float(rate) for rate in json.loads(Path(folder, "rates").read_text())]


def _broadcast(rank: int, world_size: int, folder: str, sizes: Sequence[int], device: Device, num_sources: int) -> None:
    cuda = device is Device.cuda
    where = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(where)
    backend = "nccl" if cuda else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=world_size)
    engines = range(num_sources, world_size)
    groups = [(source, dist.new_group([source, *engines])) for source in range(num_sources)]
    mine = [(source, group) for source, group in groups if rank in (source, *engines)]
    rates = [_rate(mine, torch.zeros(len(mine), size * 2**20, dtype=torch.uint8, device=where)) for size in sizes]
    if rank == 0:
        Path(folder, "rates").write_text(json.dumps([rate * num_sources for rate in rates]))
    dist.destroy_process_group()


def _rate(groups: Sequence[tuple[int, dist.ProcessGroup]], buckets: torch.Tensor) -> float:
    """GB/s of one source, while all send."""
    for number in range(1 + NUM_BROADCASTS):
        if number == 1:  # the first one opens the connections
            _wait(buckets.is_cuda)
            start = time.perf_counter()
        pairs = zip(groups, buckets, strict=True)
        works = [dist.broadcast(bucket, source, group=group, async_op=True) for (source, group), bucket in pairs]
        for work in works:
            work.wait()
    _wait(buckets.is_cuda)
    return buckets[0].nbytes * NUM_BROADCASTS / (time.perf_counter() - start) / 1e9


def _wait(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()
    dist.barrier()


def publish(cluster: Cluster, sharing: DeviceSharing, version: int, size: int) -> tuple[Receipt, dict[str, float]]:
    """One publish as a run does it, and its parts on the driver's clock."""
    seconds = {"resume weights": sum(sharing.for_weights().values())}
    start = time.perf_counter()
    receipt = cluster.trainers.publish(cluster.engines.endpoints, version, size)
    seconds["publish"] = time.perf_counter() - start
    print(f"publish {version}, {size} MiB: {seconds['publish']:.3f} s", file=sys.stderr, flush=True)
    return receipt, seconds | {f"  {phase}": value for phase, value in receipt.seconds.items()}


def measure(topology: Topology, logs: Path, sizes: Sequence[int]) -> list[Measured]:
    """One start of trainers and engines; for each size of buckets its publishes."""
    with ExitStack() as stack:
        here = stack.enter_context(ray_here(topology))
        cluster = stack.enter_context(open_cluster(topology, here, logs))
        cluster.start()
        cluster.engines.finish()
        cluster.trainers.all(TrainerRank.init_weights)
        sharing = DeviceSharing(cluster)
        return [_measure(cluster, sharing, size, last_version(number)) for number, size in enumerate(sizes)]


def last_version(number: int) -> int:
    """The last of those that are timed with the `number`-th size; one more follows it."""
    return number * (2 + NUM_PUBLISHES) + NUM_PUBLISHES


def _measure(cluster: Cluster, sharing: DeviceSharing, size: int, last: int) -> Measured:
    measured = []
    for version in range(last - NUM_PUBLISHES, last + 1):
        receipt, seconds = publish(cluster, sharing, version, size)
        moved = sharing.for_generation()
        seconds |= {"offload, resume cache": moved.get("seconds/offload", 0.0)}
        back = sharing.for_training()
        measured.append(seconds | {"release, onload": back.get("seconds/onload", 0.0)})
    means = {name: statistics.fmean(each[name] for each in measured[1:]) for name in measured[0]}
    residue = {name: value for name, value in moved.items() if name.startswith("residue/")}
    added = {} if cluster.topology.shares_gpus else added_by(cluster, sharing, last + 1, size)
    return Measured(receipt, means, residue, added)


def added_by(cluster: Cluster, sharing: DeviceSharing, version: int, size: int) -> dict[str, float]:
    """GiB that one more publish takes at most on each trainer's device, which keeps nothing of the one before."""
    cluster.trainers.all(TrainerRank.trim)
    held(cluster)
    rest = held(cluster)
    publish(cluster, sharing, version, size)
    return {
        f"added on rank {rank}": most - before
        for rank, (most, before) in enumerate(zip(held(cluster), rest, strict=True))
    }


def held(cluster: Cluster) -> list[float]:
    """GiB in use at most on each trainer's device since this was asked last; none on a CPU."""
    return [usage.device / 2**30 for usage in cluster.trainers.all(TrainerRank.usage) if usage.device is not None]


def engine_seconds(log: Path, version: int) -> dict[str, float]:
    """Where the first engine's time went in one publish, as its ledger logged it bucket by bucket."""
    seconds: dict[str, float] = {}
    for line in log.read_text(errors="replace").splitlines():
        if f"of weight version {version}: " in line:
            for name, value in re.findall(r"(\w+) ([\d.]+) s", line.rpartition(": ")[2]):
                seconds[f"in the engine: {name}"] = seconds.get(f"in the engine: {name}", 0.0) + float(value)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="What publishing costs.")
    parser.add_argument("--buckets", type=lambda sizes: [int(size) for size in sizes.split(",")], help="MiB, by commas")
    parser.add_argument("overrides", nargs="*", help="of the config; default: glm4-tiny on this machine")
    arguments = parser.parse_intermixed_args()
    cfg = compose([*(arguments.overrides or LAPTOP), *REST])
    sizes = arguments.buckets or [cfg.weights.bucket_mb]
    os.environ.update(NCCL_CUMEM_ENABLE="0", NCCL_NVLS_ENABLE="0")  # for the bare broadcast, as runs have it
    topology = read_topology(cfg)
    broadcasts = topology.transport == BROADCAST
    wires = bare_broadcast(topology, sizes) if broadcasts else [0.0] * len(sizes)
    with tempfile.TemporaryDirectory() as folder:
        cfg.weights.path = str(Path(folder, "weights"))
        try:
            measured = measure(topology, Path(folder), sizes)
        except BaseException:
            for log in sorted(Path(folder).glob("*.log")):
                print(f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-40:], sep="\n", file=sys.stderr)
            raise
        log = Path(folder) / "engine-0.log"
        for number, each in enumerate(measured):
            each.seconds.update(engine_seconds(log, last_version(number)))
    print_head(topology, measured[0].receipt)
    print_table(cfg, sizes, measured, wires)


def print_head(topology: Topology, receipt: Receipt) -> None:
    cfg, groups = topology.config, topology.groups
    engines = ", ".join(f"{group.num_engines} engine(s) x tp {group.devices_per_engine}" for group in groups)
    print(f"\n{cfg.model.name}, {cfg.model.num_layers or 'all'} layers, {cfg.cluster.placement.name}")
    print(f"{cfg.cluster.num_trainers} trainer rank(s) {cfg.train.megatron}, {engines}")
    print(f"{conditions()}; {topology.transport}, mean of {NUM_PUBLISHES}")
    print(f"{receipt.num_tensors} tensors, {receipt.num_bytes / 1e9:.2f} GB, receipt {receipt.fingerprint}\n")


def print_table(cfg: SlimeConfig, sizes: Sequence[int], measured: Sequence[Measured], wires: Sequence[float]) -> None:
    """A column for each size of buckets."""
    rates = [each.receipt.num_bytes / 1e9 / each.seconds["publish"] for each in measured]
    _print_row("buckets of", sizes, "MiB", digits=0)
    for name in measured[0].seconds:
        _print_row(name, [each.seconds[name] for each in measured], "s")
    for name in measured[0].residue:
        _print_row(name, [each.residue[name] for each in measured], "GiB")
    for name in measured[0].added:
        _print_row(name, [each.added[name] for each in measured], "GiB")
    _print_row("rate", rates, "GB/s", digits=1)
    for name in measured[0].receipt.rates:
        _print_row(
            f"  {name.partition(' of ')[0]}", [_rate_of(each.receipt, name) for each in measured], "GB/s", digits=1
        )
    if any(wires):
        _print_row("a bare broadcast's", wires, "GB/s", digits=1)
        _print_row("share of it", [100 * rate / wire for rate, wire in zip(rates, wires, strict=True)], "%", digits=0)
    if cfg.cluster.device is Device.cuda:
        _print_promise(rates, measured, wires, PROMISED_OF_SEVERAL if cfg.weights.num_sources > 1 else PROMISED_SHARE)


def _rate_of(receipt: Receipt, source: str) -> float:
    """Of the last publish. Sources are numbered, their stores' ports differ."""
    return next(
        rate for name, rate in receipt.rates.items() if name.partition(" of ")[0] == source.partition(" of ")[0]
    )


def _print_row(name: str, values: Sequence[float], unit: str, digits: int = 3) -> None:
    print(f"{name:<24}" + "".join(f"{value:>9.{digits}f}" for value in values) + f" {unit}")


def _print_promise(rates: Sequence[float], measured: Sequence[Measured], wires: Sequence[float], share: float) -> None:
    if any(wires):
        kept = [rate / wire >= share for rate, wire in zip(rates, wires, strict=True)]
    else:
        kept = [each.seconds["publish"] < PROMISED_S for each in measured]
    promise = f"{share:.0%} of a bare broadcast" if any(wires) else f"< {PROMISED_S:g} s for 9 B"
    print(f"promised {promise}: {', '.join('kept' if each else 'MISSED' for each in kept)}")


if __name__ == "__main__":
    main()
