"""All actors of a run as two groups, and the one place that waits for remote calls."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from slime import plugins
from slime.cluster.actors import EngineActor, RunInfo, TrainerActor, remote
from slime.cluster.launch import ray_cluster
from slime.cluster.placement import bundles, reserve, this_node
from slime.cluster.reaper import reaped
from slime.cluster.stacks import FILE as HANG_FILE
from slime.cluster.stacks import suspects
from slime.cluster.stacks import take as take_stacks
from slime.cluster.watch import Death, Member, Watch, died
from slime.config.paths import located
from slime.config.schema import Placement, SlimeConfig
from slime.errors import NoAnswer, SlimeError
from slime.net import Endpoint, new_key
from slime.topology.placement import engine_ranks, shares_gpus

WEIGHTS, KV_CACHE = "weights", "kv_cache"
"""SGLang's tags of what an engine can release."""
STOP_S = 3.0
"""How long engines have to end by themselves; one that is still starting is killed with its actor instead."""
ASK_S = 10.0
"""How long engines have to say that they live; one that is busy does not answer, and lives."""
WATCH_S = 1.0
"""How often it is asked, while something lasts, who still lives."""
_ASKING = "it was asked who lives"
T = TypeVar("T")


@dataclass
class Cluster:
    """The run's actors, and what is known of them once they are up."""

    cfg: SlimeConfig
    trainers: list[Member]
    engines: list[Member]
    logs: Path
    endpoints: tuple[Endpoint, ...] = ()
    data_parallel_size: int = 1
    packing_align: int = 1
    micro_batch_multiple: int = 1
    _watch: Watch | None = None

    def start(self, model_path: Path) -> None:
        """Bring trainers and engines up at the same time; engines hold no weights until the first publish.

        Colocated engines come first, because they measure the free memory of their devices, and release it again.
        """
        self.check_in()
        starting = {
            engine.actor.start.remote(model_path, devices): engine
            for engine, devices in zip(self.engines, self._engine_devices(), strict=True)
        }
        if self.cfg.cluster.placement is Placement.colocated:
            self.endpoints = tuple(self.wait(starting, "starting engines", self._start_limit))
            self.engine_memory("release", KV_CACHE, WEIGHTS)
        self._start_trainers()
        self.endpoints = tuple(self.wait(starting, "starting engines", self._start_limit))

    def check_in(self) -> None:
        """Learn where the actors are; from now on they are watched."""
        places = self._call(self._members, "check_in", what="starting", limit_s=self._start_limit)
        for member, place in zip(self._members, places, strict=True):
            member.node, member.host, member.pid = place
        self._watch = Watch(self._members, self.logs, is_own_ray=not self.cfg.cluster.ray_address)

    def _engine_devices(self) -> list[list[str]]:
        """The devices of the trainer ranks beside each engine; none where Ray gives an engine its own."""
        if not shares_gpus(self.cfg):
            return [[] for _ in self.engines]
        devices = self._call(self.trainers, "device", what="starting", limit_s=self._start_limit)
        return [[devices[rank] for rank in ranks] for ranks in engine_ranks(self.cfg)]

    def _start_trainers(self) -> None:
        (where,) = self._call(self.trainers[:1], "free_port", what="finding a port", limit_s=self._start_limit)
        started = self._call(self.trainers, "start", *where, what="starting", limit_s=self._start_limit)
        self.data_parallel_size, self.packing_align, self.micro_batch_multiple = started[0]

    def train(self, method: str, *args: Any) -> Any:
        """Call a collective method on every trainer rank; returns rank 0's answer."""
        return self.train_all(method, *args)[0]

    def train_all(self, method: str, *args: Any) -> list[Any]:
        """As `train`, but returns every rank's answer."""
        return self._call(self.trainers, method, *args, limit_s=self.cfg.cluster.hang_timeout_s)

    def engine_memory(self, action: Literal["release", "resume"], *tags: str) -> None:
        """Have every engine release or resume the device memory behind SGLang's `tags`."""
        what = f"{action} {' and '.join(tags)} of engines"
        self._call(self.engines, f"{action}_memory", *tags, what=what, limit_s=self.cfg.cluster.hang_timeout_s)

    def stop_engines(self) -> None:
        """Let engines remove their scratch folders; Ray, which ends all the rest, kills who would do it later."""
        import ray

        if stopping := [engine.actor.stop.remote() for engine in self.engines]:
            ray.wait(stopping, num_returns=len(stopping), timeout=STOP_S)

    async def watched(self, work: Coroutine[Any, Any, T], what: str) -> T:
        """The result of `work`, which asks engines; the death of one of the run's processes ends it within seconds.

        Raises:
            SlimeError: naming the process that died.
        """
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([task], timeout=WATCH_S))[0]:
                if fault := await asyncio.to_thread(self._fault, what):
                    raise fault
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait([task], timeout=STOP_S)

    @contextlib.contextmanager
    def naming_causes(self) -> Iterator[None]:
        """Replace an error by the one of the process that died or hangs, if that caused it."""
        try:
            yield
        except Death:
            raise
        except Exception as error:
            cause = self._dead() or (self._hanging(error) if isinstance(error, NoAnswer) else None)
            if cause is None:
                raise
            raise cause from error

    def _dead(self) -> SlimeError | None:
        """Of the run's processes one that has ended: Ray's, actors, and then the engines' servers."""
        return self._fault(_ASKING) or self._dead_server() or self._fault(_ASKING)

    def _dead_server(self) -> SlimeError | None:
        import ray

        asked = [engine.actor.check_alive.remote() for engine in self.engines]
        answered, _ = ray.wait(asked, num_returns=len(asked), timeout=ASK_S) if asked else ([], [])
        for answer in answered:
            try:
                ray.get(answer)
            except ray.exceptions.RayError as error:  # an actor that has died is `_fault`'s to name
                if isinstance(cause := getattr(error, "cause", None), SlimeError):
                    return cause
        return None

    def _fault(self, what: str) -> SlimeError | None:
        return self._watch.fault(what) if self._watch else None

    def _call(
        self, members: Sequence[Member], method: str, *args: Any, what: str | None = None, limit_s: float
    ) -> list[Any]:
        calls = {getattr(member.actor, method).remote(*args): member for member in members}
        return self.wait(calls, what or method, limit_s)

    def wait(self, calls: Mapping[Any, Member], what: str, limit_s: float) -> list[Any]:
        """Results of remote calls, in order. The first failure is raised at once; silence ends with every stack.

        Args:
            calls: reference to the actor that was called.

        Raises:
            SlimeError: naming the process that died, or those that gave no answer within `limit_s` seconds.
        """
        import ray

        pending, deadline = list(calls), time.monotonic() + limit_s
        while pending:
            limit = min(WATCH_S, max(0.0, deadline - time.monotonic()))
            ready, pending = ray.wait(pending, num_returns=1, timeout=limit)
            if ready:
                self._get(ready[0], calls[ready[0]], what)
            elif fault := self._fault(what):
                raise fault
            elif time.monotonic() >= deadline:
                raise self._late([calls[ref] for ref in pending], what, limit_s)
        return [self._get(ref, member, what) for ref, member in calls.items()]

    def _get(self, ref: Any, member: Member, what: str) -> Any:
        import ray

        try:
            return ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, SlimeError):
                raise error.cause from None
            raise
        except ray.exceptions.RayError as error:
            raise self._fault(what) or died(member, error, what, self.logs) from error

    def _late(self, pending: Sequence[Member], what: str, limit_s: float) -> SlimeError:
        told = f"no answer within {limit_s:g} s while {what}"
        return SlimeError(
            f"{told}: {suspects(take_stacks(self._members, self.logs, told), pending)}",
            where=pending[0].name,
            todo=f"{self._stacks} Raise cluster.hang_timeout_s if it was only slow.",
        )

    def _hanging(self, error: NoAnswer) -> SlimeError:
        """The error with every stack taken, and those named that give none."""
        seen = take_stacks(self._members, self.logs, str(error))
        told = suspects(seen, []) or f"all {len(seen)} processes answer a signal"
        return SlimeError(f"{error.what}; {told}", where=error.where, todo=f"{self._stacks} {error.todo}")

    @property
    def _stacks(self) -> str:
        return f"The stacks of all processes are in {self.logs / HANG_FILE}."

    @property
    def _members(self) -> list[Member]:
        return [*self.trainers, *self.engines]

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
        cluster = Cluster(cfg, trainers, engines, logs)
        try:
            yield cluster
        finally:
            cluster.stop_engines()
