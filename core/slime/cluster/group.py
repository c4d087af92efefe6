"""All actors of a run: trainer ranks and engines."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slime import plugins
from slime.cluster.actors import EngineActor, RunInfo, TrainerActor, remote
from slime.cluster.calls import Calls
from slime.cluster.launch import ray_cluster
from slime.cluster.placement import bundles, reserve, this_node
from slime.cluster.reaper import reaped
from slime.cluster.trainers import TrainerGroup
from slime.cluster.watch import Member
from slime.config.paths import located
from slime.config.schema import Placement, SlimeConfig
from slime.net import Endpoint, new_key
from slime.topology.placement import engine_ranks, shares_gpus

WEIGHTS, KV_CACHE = "weights", "kv_cache"
"""SGLang's tags of what an engine can release."""
STOP_S = 3.0
"""How long engines have to end by themselves; one that is still starting is killed with its actor instead."""


@dataclass
class Cluster:
    """The run's actors, and what is known of them once they are up."""

    cfg: SlimeConfig
    calls: Calls
    trainers: TrainerGroup
    endpoints: tuple[Endpoint, ...] = ()

    def start(self, model_path: Path) -> None:
        """Bring trainers and engines up at the same time; engines hold no weights until the first publish.

        Colocated engines come first, because they measure the free memory of their devices, and release it again.
        """
        self.calls.check_in(self._start_limit)
        starting = {
            engine.call(EngineActor.start, model_path, devices): engine
            for engine, devices in zip(self.calls.engines, self._engine_devices(), strict=True)
        }
        if self.cfg.cluster.placement is Placement.colocated:
            self.endpoints = tuple(self.calls.wait(starting, "starting engines", self._start_limit))
            self.engine_memory("release", KV_CACHE, WEIGHTS)
        self.trainers.start()
        self.endpoints = tuple(self.calls.wait(starting, "starting engines", self._start_limit))

    def _engine_devices(self) -> list[list[str]]:
        """The devices of the trainer ranks beside each engine; none where Ray gives an engine its own."""
        if not shares_gpus(self.cfg):
            return [[] for _ in self.calls.engines]
        devices = self.trainers.devices()
        return [[devices[rank] for rank in ranks] for ranks in engine_ranks(self.cfg)]

    def engine_memory(self, action: Literal["release", "resume"], *tags: str) -> None:
        """Have every engine release or resume the device memory behind SGLang's `tags`."""
        what, limit_s = f"{action} {' and '.join(tags)} of engines", self.cfg.cluster.hang_timeout_s
        method = EngineActor.release_memory if action == "release" else EngineActor.resume_memory
        self.calls.all(self.calls.engines, what, limit_s, method, *tags)

    def stop_engines(self) -> None:
        """Let engines remove their scratch folders; Ray, which ends all the rest, kills who would do it later."""
        import ray

        if stopping := [engine.call(EngineActor.stop) for engine in self.calls.engines]:
            ray.wait(stopping, num_returns=len(stopping), timeout=STOP_S)

    @property
    def _start_limit(self) -> float:
        return self.cfg.cluster.start_timeout_s


def _for_actors(cfg: SlimeConfig) -> SlimeConfig:
    """With the paths that actors read made absolute: those of a Ray that was there before work in its own folder."""
    tokenizer = cfg.model.tokenizer and located(cfg.model.tokenizer)
    model = dataclasses.replace(cfg.model, path=located(cfg.model.path), tokenizer=tokenizer)
    return dataclasses.replace(cfg, model=model)


@contextlib.contextmanager
def open_cluster(cfg: SlimeConfig, logs: Path) -> Iterator[Cluster]:
    """Reserve the devices, create every actor, and take all of it down at the end."""
    cfg = _for_actors(cfg)
    mark = secrets.token_hex(4)
    with reaped(mark), ray_cluster(cfg.cluster, num_slots=len(bundles(cfg))):
        slots = reserve(cfg)
        run = RunInfo(cfg, logs, plugins.load().fingerprint(), new_key(), mark, slots.nodes == {this_node()})
        trainers = [
            Member(
                f"trainer-{rank}", remote(TrainerActor, **slots.options(slot)).remote(run, rank, len(slots.trainers))
            )
            for rank, slot in enumerate(slots.trainers)
        ]
        engines = [
            Member(f"engine-{index}", remote(EngineActor, **slots.options(nodes[0])).remote(run, index))
            for index, nodes in enumerate(slots.engines)
        ]
        calls = Calls(trainers, engines, logs, is_own_ray=not cfg.cluster.ray_address)
        cluster = Cluster(cfg, calls, TrainerGroup(calls, cfg.cluster))
        try:
            yield cluster
        finally:
            cluster.stop_engines()
