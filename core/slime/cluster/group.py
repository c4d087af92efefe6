"""All actors of a run as two groups, and the one place that waits for remote calls."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from slime import plugins
from slime.cluster.actors import EngineActor, RunInfo, TrainerActor, remote
from slime.cluster.launch import ray_cluster
from slime.cluster.placement import bundles, reserve, this_node
from slime.cluster.reaper import reaped
from slime.config.paths import located
from slime.config.schema import Placement, SlimeConfig
from slime.errors import SlimeError
from slime.net import Endpoint, new_key
from slime.topology.placement import engine_ranks, shares_gpus

WEIGHTS, KV_CACHE = "weights", "kv_cache"
"""SGLang's tags of what an engine can release."""
STOP_S = 3.0
"""How long engines have to end by themselves; one that is still starting is killed with its actor instead."""
ASK_S = 10.0
"""How long engines have to say that they live; one that is busy does not answer, and lives."""


@dataclass
class Cluster:
    """Handles of the run's actors and what is known of them once they are up."""

    cfg: SlimeConfig
    trainers: list[Any]
    engines: list[Any]
    logs: Path
    endpoints: tuple[Endpoint, ...] = ()
    data_parallel_size: int = 1
    packing_align: int = 1
    micro_batch_multiple: int = 1
    _pids: dict[str, list[int]] = field(default_factory=dict)

    def start(self, model_path: Path) -> None:
        """Bring trainers and engines up at the same time; engines hold no weights until the first publish.

        Colocated engines come first, because they measure the free memory of their devices, and release it again.
        """
        for node, pid in self.wait([actor.check_in.remote() for actor in self._actors], "starting", self._start_limit):
            self._pids.setdefault(node, []).append(pid)
        starting = [
            engine.start.remote(model_path, devices)
            for engine, devices in zip(self.engines, self._engine_devices(), strict=True)
        ]
        if self.cfg.cluster.placement is Placement.colocated:
            self.endpoints = tuple(self.wait(starting, "starting engines", self._start_limit))
            self.engine_memory("release", KV_CACHE, WEIGHTS)
        self._start_trainers()
        self.endpoints = tuple(self.wait(starting, "starting engines", self._start_limit))

    def _engine_devices(self) -> list[list[str]]:
        """The devices of the trainer ranks beside each engine; none where Ray gives an engine its own."""
        if not shares_gpus(self.cfg):
            return [[] for _ in self.engines]
        devices = self.wait([rank.device.remote() for rank in self.trainers], "starting", self._start_limit)
        return [[devices[rank] for rank in ranks] for ranks in engine_ranks(self.cfg)]

    def _start_trainers(self) -> None:
        first = self.trainers[0]
        address, port = self.wait([first.host.remote(), first.free_port.remote()], "finding a port", self._start_limit)
        started = self.wait([rank.start.remote(address, port) for rank in self.trainers], "starting", self._start_limit)
        self.data_parallel_size, self.packing_align, self.micro_batch_multiple = started[0]

    def train(self, method: str, *args: Any) -> Any:
        """Call a collective method on every trainer rank; returns rank 0's answer."""
        return self.train_all(method, *args)[0]

    def train_all(self, method: str, *args: Any) -> list[Any]:
        """As `train`, but returns every rank's answer."""
        refs = [getattr(rank, method).remote(*args) for rank in self.trainers]
        return self.wait(refs, method, self.cfg.cluster.hang_timeout_s)

    def engine_memory(self, action: Literal["release", "resume"], *tags: str) -> None:
        """Have every engine release or resume the device memory behind SGLang's `tags`."""
        refs = [getattr(engine, f"{action}_memory").remote(*tags) for engine in self.engines]
        self.wait(refs, f"{action} {' and '.join(tags)} of engines", self.cfg.cluster.hang_timeout_s)

    def stop_engines(self) -> None:
        """Let engines remove their scratch folders; Ray, which ends all the rest, kills who would do it later."""
        import ray

        if stopping := [engine.stop.remote() for engine in self.engines]:
            ray.wait(stopping, num_returns=len(stopping), timeout=STOP_S)

    @contextlib.contextmanager
    def naming_dead_engines(self) -> Iterator[None]:
        """Turn a failure that the death of an engine caused, wherever it showed first, into that engine's error."""
        import ray

        try:
            yield
        except SlimeError:
            asked = [engine.check_alive.remote() for engine in self.engines]
            answered, _ = ray.wait(asked, num_returns=len(asked), timeout=ASK_S) if asked else ([], [])
            for answer in answered:
                self._get(answer, "asking engines whether they live")
            raise

    def wait(self, refs: Sequence[Any], what: str, limit_s: float) -> list[Any]:
        """Results of remote calls, in order. The first failure is raised at once; silence ends with every stack.

        Raises:
            SlimeError: a process died (with the tail of its log), or nothing came within `limit_s` seconds.
        """
        import ray

        pending, deadline = list(refs), time.monotonic() + limit_s
        while pending:
            ready, pending = ray.wait(pending, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self._hung(what, limit_s)
            self._get(ready[0], what)
        return [self._get(ref, what) for ref in refs]

    def _get(self, ref: Any, what: str) -> Any:
        import ray

        try:
            return ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, SlimeError):
                raise error.cause from None
            raise
        except ray.exceptions.ActorDiedError as error:
            todo = (
                f"Read the newest *.log in {self.logs}; a process killed for memory leaves no line there (see dmesg)."
            )
            raise SlimeError(
                f"a process died while {what}: {_first_line(error)}", where="cluster", todo=todo
            ) from error

    def _hung(self, what: str, limit_s: float) -> SlimeError:
        for node, pids in self._pids.items():
            dump_stacks(node, pids, self.logs)
        return SlimeError(
            f"no answer within {limit_s:g} s while {what}",
            where="cluster",
            todo=f"Each process's stack is in {self.logs}/*.stack; raise cluster.hang_timeout_s if it was only slow.",
        )

    @property
    def _actors(self) -> list[Any]:
        return [*self.trainers, *self.engines]

    @property
    def _start_limit(self) -> float:
        return self.cfg.cluster.start_timeout_s


def dump_stacks(node: str, pids: Sequence[int], logs: Path) -> None:
    """Make the processes `pids` of Ray node `node` write their stacks into `logs`."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from slime.observe.hang import dump

    there = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    ray.get(ray.remote(dump).options(num_cpus=0, scheduling_strategy=there).remote(pids, logs), timeout=30)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _for_actors(cfg: SlimeConfig) -> SlimeConfig:
    """With the paths that actors read made absolute: those of a Ray that was there before work in its own folder."""
    tokenizer = cfg.model.tokenizer and located(cfg.model.tokenizer)
    model = dataclasses.replace(cfg.model, path=located(cfg.model.path), tokenizer=tokenizer)
    return dataclasses.replace(cfg, model=model)


@contextlib.contextmanager
def open_cluster(cfg: SlimeConfig, logs: Path) -> Iterator[Cluster]:
    """Reserve the devices, create every actor, and take all of it down at the end."""
    cfg = _for_actors(cfg)
    with reaped(), ray_cluster(cfg.cluster, num_slots=len(bundles(cfg))):
        slots = reserve(cfg)
        run = RunInfo(cfg, logs, plugins.load().fingerprint(), new_key(), slots.nodes == {this_node()})
        trainers = [
            remote(TrainerActor, **slots.options(slot)).remote(run, rank, len(slots.trainers))
            for rank, slot in enumerate(slots.trainers)
        ]
        engines = [
            remote(EngineActor, **slots.options(nodes[0])).remote(run, index)
            for index, nodes in enumerate(slots.engines)
        ]
        cluster = Cluster(cfg, trainers, engines, logs)
        try:
            yield cluster
        finally:
            cluster.stop_engines()
