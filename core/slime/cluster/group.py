"""All actors of a run: trainer ranks and engines."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from rich.console import Console

from slime.cluster.actors import EngineActor, RunInfo, TrainerActor, remote
from slime.cluster.calls import Calls
from slime.cluster.engines import KV_CACHE, WEIGHTS, Engines
from slime.cluster.launch import Here, ray_everywhere
from slime.cluster.placement import reserve, this_node
from slime.cluster.trainers import TrainerGroup
from slime.cluster.watch import Member
from slime.config.paths import located
from slime.config.schema import Placement, SlimeConfig
from slime.net import new_key
from slime.observe.startup import Startup
from slime.topology.fp8 import IN_BLOCKS
from slime.topology.placement import process_name, shares_gpus


@dataclass
class Cluster:
    """The run's actors."""

    cfg: SlimeConfig
    calls: Calls
    trainers: TrainerGroup
    engines: Engines

    def start(self, model_path: Path) -> None:
        """Bring trainers up, and let engines start meanwhile, which `engines.finish` waits for; they hold no weights
        until the first publish.

        Colocated engines come first, because they measure the free memory of their devices, and release it again.
        """
        self.calls.check_in(self.cfg.cluster.start_timeout_s)
        self.engines.begin(model_path, self.trainers.devices() if shares_gpus(self.cfg) else ())
        if self.cfg.cluster.placement is Placement.colocated:
            self.engines.finish()
            self.engines.memory("release", KV_CACHE, WEIGHTS)
        self.trainers.start()


def _for_actors(cfg: SlimeConfig) -> SlimeConfig:
    """With the paths that actors read made absolute: those of a Ray that was there before work in its own folder."""
    tokenizer = cfg.model.tokenizer and located(cfg.model.tokenizer)
    weights = cfg.model.weights and located(cfg.model.weights)
    model = dataclasses.replace(cfg.model, path=located(cfg.model.path), tokenizer=tokenizer, weights=weights)
    fp8 = cfg.rollout.fp8 if cfg.rollout.fp8 in (None, IN_BLOCKS) else located(cfg.rollout.fp8)
    return dataclasses.replace(
        cfg,
        model=model,
        rollout=dataclasses.replace(cfg.rollout, fp8=fp8),
        weights=dataclasses.replace(cfg.weights, path=located(cfg.weights.path)),
    )


@contextlib.contextmanager
def open_cluster(
    cfg: SlimeConfig,
    here: Here,
    logs: Path,
    startup: Startup | None = None,
    require_ready: Callable[[Collection[str]], None] = lambda nodes: None,
) -> Iterator[Cluster]:
    """Have the other hosts join, reserve the devices, create every actor, and take all of it down at the end.

    Args:
        logs: folder of the run directory.
        startup: told what is waited for.
        require_ready: called with Ray's ids of the hosts before anything starts on them.
    """
    cfg, startup = _for_actors(cfg), startup or Startup(Console(quiet=True))
    with ray_everywhere(cfg, here, logs) as sessions:
        slots = reserve(cfg, startup)
        require_ready(slots.nodes)
        run = RunInfo(cfg, logs, new_key(), here.mark, slots.nodes == {this_node()})
        trainers = [
            Member(
                f"trainer-{rank}", remote(TrainerActor, **slots.options(slot)).remote(run, rank, len(slots.trainers))
            )
            for rank, slot in enumerate(slots.trainers)
        ]
        processes = [
            [
                Member(process_name(index, rank), remote(EngineActor, **slots.options(slot)).remote(run, index, rank))
                for rank, slot in enumerate(nodes)
            ]
            for index, nodes in enumerate(slots.engines)
        ]
        waiting = partial(startup.waiting, logs=logs)
        calls = Calls(trainers, [*chain(*processes)], logs, sessions, not cfg.cluster.ray_address, waiting)
        engines = Engines(calls, cfg, processes)
        try:
            yield Cluster(cfg, calls, TrainerGroup(calls, cfg.cluster), engines)
        finally:
            engines.stop()
