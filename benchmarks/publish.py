"""What it costs to hand new weights to the engines, receipt included, and what the wires alone would take.

    python benchmarks/publish.py                                                    # glm4-tiny on this machine
    python benchmarks/publish.py +model=glm4-9b +cluster=h200x1 model.num_layers=12 # by CUDA IPC
    python benchmarks/publish.py +model=glm4-9b +cluster=h200x4-split               # by NCCL broadcast

Starts trainers and engines as a run does, without generating or training, and publishes again and again. The first
publish is left out: it opens connections and process groups. Where weights are broadcast, a bare broadcast of buckets
of the same size between the first trainer's device and as many more as the engines have is measured beforehand.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from machine import conditions

from slime.cluster.group import Cluster, open_cluster
from slime.cluster.residency import Residency
from slime.config.compose import compose
from slime.config.paths import resolve
from slime.config.schema import Device, SlimeConfig, Transport
from slime.net import free_port
from slime.plan.rules import devices_per_engine, transport_of
from slime.types import Receipt

LAPTOP = ["+model=glm4-tiny", "+cluster=local"]
REST = ["run.num_steps=1", "reward=arithmetic", "data.path=pkg://slime_plugin_math/data/arithmetic-train.jsonl"]
NUM_PUBLISHES, NUM_BROADCASTS = 5, 10
PROMISED_S, PROMISED_SHARE = 1.0, 0.7
"""Of 9 B on GPUs: colocated, and of a bare broadcast."""


def bare_broadcast(cfg: SlimeConfig) -> float:
    """GB/s at which one device sends buckets to as many others as the engines have."""
    world_size = 1 + cfg.cluster.num_engines * devices_per_engine(cfg)
    with tempfile.NamedTemporaryFile() as result:
        arguments = (world_size, free_port("127.0.0.1"), cfg.weights.bucket_mb * 2**20, cfg.cluster.device, result.name)
        mp.spawn(_broadcast, arguments, nprocs=world_size)
        return float(Path(result.name).read_text())


def _broadcast(rank: int, world_size: int, port: int, num_bytes: int, device: Device, result: str) -> None:
    cuda = device is Device.cuda
    where = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(where)
    backend = "nccl" if cuda else "gloo"
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    bucket = torch.zeros(num_bytes, dtype=torch.uint8, device=where)
    for number in range(1 + NUM_BROADCASTS):
        if number == 1:  # the first one opens the connections
            _wait(cuda)
            start = time.perf_counter()
        dist.broadcast(bucket, 0)
    _wait(cuda)
    if rank == 0:
        Path(result).write_text(str(num_bytes * NUM_BROADCASTS / (time.perf_counter() - start) / 1e9))
    dist.destroy_process_group()


def _wait(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()
    dist.barrier()


def publish(cluster: Cluster, residency: Residency, version: int) -> tuple[Receipt, dict[str, float]]:
    """One publish as a run does it, and its parts on the driver's clock."""
    seconds = {"resume weights": sum(residency.for_weights().values())}
    start = time.perf_counter()
    receipts = cluster.train_all("publish", cluster.engine_urls, version)
    receipt = Receipt.merged([receipt for receipt in receipts if receipt])
    seconds["publish"] = time.perf_counter() - start
    return receipt, seconds | {f"  {phase}": value for phase, value in receipt.seconds.items()}


def measure(cfg: SlimeConfig, logs: Path) -> tuple[Receipt, dict[str, float]]:
    """The last receipt, and mean seconds by phase."""
    with ExitStack() as stack:
        cluster = stack.enter_context(open_cluster(cfg, logs))
        cluster.start(resolve(cfg.model.path))
        cluster.train("init_weights")
        residency, measured = Residency(cluster), []
        for version in range(1 + NUM_PUBLISHES):
            receipt, seconds = publish(cluster, residency, version)
            moved = residency.for_generation()
            seconds |= {"offload, resume cache": moved.get("seconds/offload", 0.0)}
            back = residency.for_training()
            seconds |= {"release, onload": back.get("seconds/onload", 0.0)}
            measured.append(seconds)
            print(f"publish {version}: {seconds['publish']:.3f} s", file=sys.stderr, flush=True)
        return receipt, {name: statistics.fmean(each[name] for each in measured[1:]) for name in measured[0]} | {
            name: value for name, value in moved.items() if name.startswith("residue/")
        }


def engine_seconds(log: Path) -> dict[str, float]:
    """Where the first engine's time went in the last publish, as its ledger logged it bucket by bucket."""
    seconds: dict[str, float] = {}
    for line in log.read_text(errors="replace").splitlines():
        if f"of weight version {NUM_PUBLISHES}: " in line:
            for name, value in re.findall(r"(\w+) ([\d.]+) s", line.rpartition(": ")[2]):
                seconds[name] = seconds.get(name, 0.0) + float(value)
    return seconds


def main() -> None:
    cfg = compose([*(sys.argv[1:] or LAPTOP), *REST])
    transport = transport_of(cfg)
    os.environ.update(NCCL_CUMEM_ENABLE="0", NCCL_NVLS_ENABLE="0")  # for the bare broadcast, as runs have it
    wires = bare_broadcast(cfg) if transport is Transport.broadcast else 0.0
    with tempfile.TemporaryDirectory() as folder:
        try:
            receipt, values = measure(cfg, Path(folder))
        except BaseException:
            for log in sorted(Path(folder).glob("*.log")):
                print(f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-40:], sep="\n", file=sys.stderr)
            raise
        inside = engine_seconds(Path(folder) / "engine-0.log")
    engines = f"{cfg.cluster.num_engines} engine(s) x tp {devices_per_engine(cfg)}"
    gigabytes = receipt.num_bytes / 1e9
    print(f"\n{cfg.model.name}, {cfg.model.num_layers or 'all'} layers, {cfg.cluster.placement.name}")
    print(f"{cfg.cluster.num_trainers} trainer rank(s) {cfg.train.megatron}, {engines}")
    print(f"{conditions()}; {transport.name}, buckets of {cfg.weights.bucket_mb} MiB, mean of {NUM_PUBLISHES}")
    print(f"{receipt.num_tensors} tensors, {gigabytes:.2f} GB, receipt {receipt.fingerprint}\n")
    for name, value in values.items():
        print(f"{name:<24}{value:>9.3f}{' GiB' if 'gib' in name else ' s'}")
    for name, seconds in inside.items():
        print(f"{f'in the engine: {name}':<24}{seconds:>9.3f} s")
    rate = gigabytes / values["publish"]
    print(f"\n{rate:.1f} GB/s" + (f", {rate / wires:.0%} of a bare broadcast's {wires:.1f} GB/s" if wires else ""))
    if cfg.cluster.device is Device.cuda:
        kept = rate / wires >= PROMISED_SHARE if wires else values["publish"] < PROMISED_S
        promise = f"{PROMISED_SHARE:.0%} of a bare broadcast" if wires else f"< {PROMISED_S:g} s for 9 B"
        print(f"promised {promise}: {'kept' if kept else 'MISSED'}")


if __name__ == "__main__":
    main()
