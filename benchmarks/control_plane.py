"""What the control plane of GLM-5.2's recipe costs by number of hosts, on one machine and without a GPU.

    python benchmarks/control_plane.py --hosts 4      # 4 hosts x 8 ranks
    python benchmarks/control_plane.py --hosts 32 --planning 8  # 256 ranks, of which the first 8 plan a publish

Real are Ray's nodes (a raylet each, with fake GPUs), placement, the run's actors, the meeting of the ranks over gloo
with Megatron's groups, the plan of a publish for every tensor of GLM-5.2, its receipt, the watch, and the end. The
trainer in an actor has a model without memory (meta tensors), and the keepers of engines start none. Ray's workers are
forked from one process that has imported everything, so that memory suffices. All ranks share this machine's cores: `s`
is its wall time, `CPU s a rank` is what a rank needs that has a core.

Each size has the recipe's 8 pipeline stages; tensor and context parallelism grow with the hosts up to the recipe's.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from unittest import mock

import psutil
import torch
import torch.distributed as dist
from forked_workers import forking
from machine import conditions
from placement import raylets
from torch.distributed import distributed_c10d

from megatron_core_portable import cpu
from slime import plugins
from slime.cluster import group
from slime.cluster.actors import TrainerActor
from slime.cluster.calls import Calls
from slime.cluster.group import Cluster, open_cluster
from slime.cluster.ray_starter import ray_here
from slime.compose.compose import examine
from slime.config.changes import changed
from slime.config.hf import config_folder, read_hf_config
from slime.config.schema import Device, SlimeConfig
from slime.errors import SlimeError
from slime.topology.topology import read_topology
from slime.types import Receipt
from slime.weights.publisher.publisher import Publisher
from slime_megatron.train import megatron
from slime_megatron.train.exports import Exports
from slime_megatron.train.weights.export import Export
from weight_buckets.receipt import BucketNote, Fingerprint

STAGES, BEATS = 8, 5
MIB = 2**20
P = ParamSpec("P")
T = TypeVar("T")


# In the actors


@dataclass(frozen=True)
class Cost:
    """Of one rank: CPU seconds, private bytes at the end, and what it found."""

    cpu_s: float
    size: int
    found: tuple[int, ...] = ()

    @classmethod
    def since(cls, start_s: float, *found: int) -> Cost:
        return cls(time.process_time() - start_s, psutil.Process().memory_full_info().uss, found)


def one_thread() -> type:
    """A process group of gloo whose sockets are watched by the same thread as those of all others. By default each has
    one, which wakes a hundred times a second: on a machine with this many ranks they take the cores."""
    gloo: Any = distributed_c10d.ProcessGroupGloo
    device = gloo.create_device(interface="lo")

    class Group(gloo):  # type: ignore[misc]
        def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
            options = gloo._Options()
            options._devices, options._timeout = [device], timeout
            super().__init__(store, rank, size, options)

    return Group


class Modeless(Exports):
    """A trainer's rank whose model has no memory. It meets the others over gloo, as on a CPU."""

    def __init__(self, cfg: SlimeConfig, *rank: Any) -> None:
        start = time.process_time()
        self.device, self.cfg = torch.device("cpu"), cfg
        with mock.patch.object(distributed_c10d, "ProcessGroupGloo", one_thread()):
            megatron.initialize(changed(cfg, {"cluster.device": Device.cpu}), *rank)
        self.met = Cost.since(start)

    def layout(self) -> None:
        """Nobody trains."""

    def build(self) -> None:
        bridge = plugins.load().models.create(self.cfg.model.family)
        self.exported = read_hf_config(config_folder(self.cfg.model), self.cfg.model.num_layers)
        self.mapping = bridge.weight_mapping(self.exported)
        with mock.patch.dict(cpu._CUDA_ATTRIBUTES, current_device=lambda: torch.device("meta")):
            self.model = megatron.skeleton(
                self.cfg.model, self.cfg.train, bridge, self.exported, on_gpus=self.cfg.cluster.on_gpus
            )


class ModelessActor(TrainerActor):
    """The run's own actor with that trainer."""

    trainer: Any
    planned: Export

    def prepare(self) -> None:
        self._make = Modeless  # type: ignore[assignment]

    def met(self) -> Cost:
        found: Cost = self.trainer.met
        return found

    def collective(self) -> int:
        """The first one: the number of ranks, by their sum."""
        one = torch.ones(())
        dist.all_reduce(one)
        return int(one)

    def build(self) -> Cost:
        start = time.process_time()
        self.trainer.build()
        return Cost.since(start)

    def plan(self, num_planning: int) -> Cost:
        """Who publishes what to whom: buckets, tensors and blocks. Collective; ranks from `num_planning` on tell what
        they hold, and do not look at what the others tell."""
        if self.rank < num_planning:
            return self._plan()
        with mock.patch.object(distributed_c10d, "_tensor_to_object", return_value={}):
            return self._plan()

    def _plan(self) -> Cost:
        start, topology = time.process_time(), self.run.topology
        publisher = Publisher(topology, self.trainer, self.host())
        if not self.trainer.inventory.holders:
            return Cost.since(start)
        self.planned = self.trainer.export_plan(
            topology.weights.bucket_mb * MIB,
            publisher._sender.receivers,
            drafts=topology.drafts,
            quantizer=publisher._quantizer,
        )
        buckets = self.planned.buckets
        num_tensors, num_blocks = (sum(len(getattr(each, what)) for each in buckets) for what in ("tensors", "blocks"))
        return Cost.since(start, len(buckets), num_tensors, num_blocks)

    def receipt(self) -> tuple[Cost, Receipt]:
        """Of a version whose tensors have the names and the number of the real ones, with 8 bytes each."""
        start, published = time.process_time(), Fingerprint()
        for bucket in self.planned.buckets:
            published.add([(name, torch.zeros(1, dtype=torch.int64)) for name, _ in bucket.tensors])
        digests = published.digests()
        note = json.dumps(BucketNote(1, 0, True, digests).to_dict())
        told = published.summary(digests)
        receipt = Receipt(1, told["tensors"], told["bytes"], 0, told["fingerprint"], (self.name,), {})
        return Cost.since(start, len(note)), receipt

    def wait_for_ever(self) -> None:
        time.sleep(3600)


# The run


def recipe(num_hosts: int, num_devices: int, address: str) -> SlimeConfig:
    """The config of GLM-5.2 for some hosts and devices of each. An engine takes a quarter of all, as in its recipe."""
    world_size = num_hosts * num_devices
    ranks, of_engine = world_size // STAGES, world_size // 4
    tensor = min(4, ranks)
    sizes = {
        "cluster.num_nodes": num_hosts,
        "cluster.num_trainers": world_size,
        "cluster.devices_per_node": num_devices,
        "train.megatron.tensor_model_parallel_size": tensor,
        "train.megatron.context_parallel_size": ranks // tensor,
        "train.megatron.expert_model_parallel_size": ranks,
        "rollout.sglang.dp_size": of_engine,
        "rollout.sglang.ep_size": of_engine,
        "rollout.engines.prefill.devices": of_engine,
        "rollout.engines.prefill.devices_per_engine": of_engine,
        "rollout.engines.decode.devices": 3 * of_engine,
        "rollout.engines.decode.devices_per_engine": of_engine,
        "cluster.ray_address": address,
        "cluster.socket_interface": "lo",
        "cluster.start_timeout_s": 1200,
        "cluster.hang_timeout_s": 1200,
    }
    words = [f"{key}={value}" for key, value in sizes.items()]
    return examine(["+model=glm5.2", "+cluster=h100x256", *words]).cfg


def family(root: int) -> list[psutil.Process]:
    """A process's children and theirs."""
    try:
        found: list[psutil.Process] = psutil.Process(root).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


def size_of(processes: Collection[psutil.Process]) -> int:
    """Bytes of these processes, what they share with others by parts."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total


class Table:
    """Rows as they come."""

    def __init__(self, forks: int) -> None:
        self._forks, self._at = forks, time.perf_counter()
        print("| stage | s | CPU s a rank | MiB a rank | MiB of all | what |\n|---|---|---|---|---|---|")

    def row(self, stage: str, what: str, costs: Sequence[Cost] = (), seconds: float | None = None) -> None:
        seconds = time.perf_counter() - self._at if seconds is None else seconds
        most = (
            [f"{max(cost.cpu_s for cost in costs):.2f}", f"{max(cost.size for cost in costs) / MIB:.0f}"]
            if costs
            else ["", ""]
        )
        everyone = {each.pid: each for each in [*family(os.getpid()), *family(self._forks)]}
        total = size_of([*everyone.values()]) / MIB
        print(
            f"| {stage} | {seconds:.1f} | {' | '.join(most)} | {total:,.0f} | {what} |",
            flush=True,
        )
        self._at = time.perf_counter()


def stages(cluster: Cluster, table: Table, num_planning: int) -> None:
    calls, limit_s = cluster.calls, cluster.topology.cluster.start_timeout_s
    num_ranks = len(calls.trainers)

    def everyone(method: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> list[T]:
        return calls.all(calls.trainers, "working", limit_s, method, *args, **kwargs)

    calls.check_in(limit_s)
    table.row("start of actors", f"{num_ranks} ranks, {len(calls.engines)} keepers of engines")
    cluster.trainers.start()
    table.row("rendezvous", "gloo, and Megatron's groups", everyone(ModelessActor.met))
    assert everyone(ModelessActor.collective) == [num_ranks] * num_ranks
    table.row("first collective", f"a sum over {num_ranks} ranks")
    if num_planning:
        publish(calls, table, num_planning, limit_s)
    took = [beat(cluster) for _ in range(BEATS)]
    table.row("watch", f"a look at all: {1000 * sum(took) / BEATS:.0f} ms in the mean of {BEATS}, a second apart")
    table.row("a killed rank", *killed(cluster))


def publish(calls: Calls, table: Table, num_planning: int, limit_s: float) -> None:
    """The plan of a version, and its receipts."""
    everyone, planning = calls.trainers, calls.trainers[:num_planning]
    table.row("model", "meta tensors", calls.all(everyone, "working", limit_s, ModelessActor.build))
    costs = calls.all(everyone, "working", limit_s, ModelessActor.plan, num_planning)[:num_planning]
    num_buckets, num_tensors, num_blocks = costs[0].found
    what = f"{num_tensors:,} tensors, {num_blocks:,} blocks, {num_buckets:,} buckets; by {num_planning} ranks"
    table.row("plan of a publish", what, costs)
    told = calls.all(planning, "working", limit_s, ModelessActor.receipt)
    receipt, size = Receipt.merged([receipt for _, receipt in told]), told[0][0].found[0] / MIB
    what = f"{receipt.num_tensors:,} tensors, digests of {size:.1f} MiB, of {len(receipt.engines)} ranks"
    table.row("receipts", what, [cost for cost, _ in told])


def beat(cluster: Cluster) -> float:
    time.sleep(1)
    start = time.perf_counter()
    cluster.calls.look("waiting")
    return time.perf_counter() - start


def killed(cluster: Cluster) -> tuple[str, Sequence[Cost], float]:
    """How the last rank is named, and seconds until it is."""
    victim = cluster.calls.trainers[-1]
    at = []

    def kill() -> None:
        at.append(time.perf_counter())
        os.kill(victim.pid, signal.SIGKILL)

    threading.Timer(3, kill).start()
    found: SlimeError | None = None
    try:
        cluster.calls.all(cluster.calls.trainers, "working", 60, ModelessActor.wait_for_ever)
    except SlimeError as error:
        found = error
    seconds = time.perf_counter() - at[0]
    assert found, "nobody noticed"
    assert found.where == str(victim), found
    return f"'{victim.name}: {found.what}'", (), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--devices", type=int, default=8, help="of each host, and so its ranks")
    parser.add_argument("--planning", type=int, help="ranks that plan a publish; default: all; 0: leave it out")
    options = parser.parse_args()
    print(f"{conditions()}; {options.hosts} hosts x {options.devices} ranks\n")
    with ExitStack() as last, tempfile.TemporaryDirectory() as folder:
        last.enter_context(mock.patch.object(group, "TrainerActor", ModelessActor))
        forks = last.enter_context(forking(Path(folder)))
        table = Table(forks)
        with ExitStack() as stack:
            address = stack.enter_context(raylets(options.hosts, options.devices))
            table.row("nodes of Ray", f"{options.hosts} raylets")
            cfg = recipe(options.hosts, options.devices, address)
            topology = read_topology(cfg)
            here = stack.enter_context(ray_here(topology))
            table.row("plan of the run", "topology, and joining Ray")

            def ready(nodes: Collection[str]) -> None:
                table.row("placement", f"a bundle on each of {len(nodes)} nodes")

            cluster = stack.enter_context(open_cluster(topology, here, Path(folder), require_ready=ready))
            stages(cluster, table, len(cluster.calls.trainers) if options.planning is None else options.planning)
        left = [each for each in family(forks) if each.is_running()]
        table.row("end", f"{len(left)} strays")


if __name__ == "__main__":
    main()
