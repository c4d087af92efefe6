"""The trainer ranks of a run as one group: what the driver has them do."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from slime.cluster.actors import TrainerActor
from slime.cluster.calls import Calls
from slime.cluster.paces import Paces
from slime.cluster.placement import host_names
from slime.cluster.watch import WATCH_S, Member
from slime.config.schema import ClusterConfig
from slime.digest import FileFacts
from slime.errors import SlimeError
from slime.net import Endpoint
from slime.train.rank import OWN_SECONDS, TrainerRank
from slime.types import Batch, Receipt

if TYPE_CHECKING:
    from slime.train.packing import RankLayout

AGAIN = "trainers start again"
HOST_S = 90.0
"""How long a host may be silent that has lost a trainer rank: Ray gives it up before."""
SURE = 2
"""Times in a row that all hosts answer before it is taken that none was lost with a process of its own."""
P = ParamSpec("P")
T = TypeVar("T")


class TrainerGroup:
    """Calls all ranks, and returns when all have answered. `all` has them do what a `TrainerRank` does; the methods are
    what takes more than that.

    Attributes:
        layouts: by rank; set by `start`.
    """

    def __init__(self, calls: Calls, limits: ClusterConfig) -> None:
        self._calls, self._limits = calls, limits
        self._devices: list[str] = []
        self.layouts: list[RankLayout] = []
        self._paces = Paces([rank.name for rank in calls.trainers], calls.logs)

    def devices(self) -> list[str]:
        """The CUDA device of each rank, as CUDA_VISIBLE_DEVICES names it. Ranks that begin again after this keep
        theirs."""
        self._devices = self._devices_now()
        return self._devices

    def _devices_now(self) -> list[str]:
        return self._calls.all(self._calls.trainers, "starting", self._limits.start_timeout_s, TrainerActor.device)

    def prepare(self) -> None:
        """Have ranks import what `start` needs, and do not wait for them."""
        self._calls.watch_beside({rank.call(TrainerActor.prepare): rank for rank in self._calls.trainers}, "starting")

    def end(self) -> None:
        """Kill what is left of every rank, which may hang. Nobody looks after them until they begin again."""
        import ray

        self._calls.leave(self._calls.trainers)
        for rank in self._calls.trainers:
            ray.kill(rank.actor)

    def begin_again(self) -> None:
        """Start all ranks, which were ended, once each has a host; they hold no weights."""
        if fewer := self._await_hosts():
            self._calls.trainers[:] = fewer
            self._paces = Paces([rank.name for rank in fewer], self._calls.logs)
        ranks = self._calls.trainers
        for rank in ranks:  # in the places of the old ones, once these are gone
            assert rank.make, "trainers can be made again"
            rank.actor, rank.has_died, rank.pid = rank.make(), False, 0
        self._calls.check_in_again(ranks, self._limits.start_timeout_s)
        if self._devices:
            require_same_devices([rank.node for rank in ranks], self._devices, self._devices_now())
        self.start()

    def _await_hosts(self) -> list[Member]:
        """Wait until each rank has a host to start on: its own, one that takes its place, or one that comes. Returns
        the ranks that the run has if none comes.

        Raises:
            SlimeError: none comes, or another process of the run has died.
        """
        if not (replacing := self._calls.replacing) or self._limits.num_hosts == 1:
            return []
        deadline, answered = time.monotonic() + HOST_S, 0
        while answered < SURE and time.monotonic() < deadline:
            answered = answered + 1 if self._calls.hosts_answer(AGAIN) else 0
            time.sleep(WATCH_S)
        return replacing.wait(self._calls.look, lambda: self._calls.tell(AGAIN, ["a host"]))

    def start(self) -> None:
        ranks, limit_s = self._calls.trainers, self._limits.start_timeout_s
        (where,) = self._calls.all(ranks[:1], "finding a port", limit_s, TrainerActor.meet)
        self.layouts = self._calls.all(ranks, "starting", limit_s, TrainerActor.start, *where, self._devices)
        names = host_names(self._limits)
        self._paces.begin([names[rank.node] for rank in ranks])

    def all(self, method: Callable[Concatenate[TrainerRank, P], T], *args: P.args, **kwargs: P.kwargs) -> list[T]:
        """What `method` of the trainer returns, by rank: `trainers.all(TrainerRank.load, folder)`."""
        calls = {_begin(member, method, *args, **kwargs): member for member in self._calls.trainers}
        return self._calls.wait(calls, method.__name__, self._limits.hang_timeout_s)

    def penalties(self, batches: Sequence[Batch], stage: str) -> dict[int, float]:
        """What a stage takes from rewards before its step, by number of the sample."""
        sums = defaultdict[int, float](float)
        calls = self._begun(batches, TrainerRank.penalties, stage)
        for of_rank in self._calls.wait(calls, f"score_{stage}", self._limits.hang_timeout_s):
            for number, penalty in of_rank.items():
                sums[number] += penalty
        return sums

    def train(
        self,
        batches: Sequence[Batch],
        step: int,
        stage: str,
        *,
        learns: bool = True,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> dict[str, float]:
        """One step of a stage, an optimizer step a batch; `learns` as of `Trainer.train`. With several ranks also
        `trainers/...` of their paces. `meanwhile` is called once they have begun."""
        calls = self._begun(batches, TrainerRank.train, step, stage, learns=learns)
        meanwhile()
        values = self._calls.wait(calls, f"train_{stage}", self._limits.hang_timeout_s)
        own = [of_rank.pop(OWN_SECONDS) for of_rank in values if OWN_SECONDS in of_rank]
        found = on_the_fullest(values, [member.node for member in self._calls.trainers])
        return found | self._paces.step(own)

    def _begun(
        self, batches: Sequence[Batch], method: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> dict[Any, Member]:
        """Calls of `method` on every rank, by reference. The share of a data-parallel rank lies in Ray's store once:
        all ranks that hold parts of one replica of the model read the same one."""
        import ray

        ranks = range(self.layouts[0].data_parallel_size)
        shares = [ray.put([batch.share(rank) for batch in batches]) for rank in ranks]
        return {
            _begin(member, method, shares[layout.data_parallel_rank], *args, **kwargs): member
            for member, layout in zip(self._calls.trainers, self.layouts, strict=True)
        }

    def publish(self, engines: Sequence[Endpoint | None], version: int, bucket_mb: int | None = None) -> Receipt:
        """Hand the weights to every engine but those that are None, in buckets of `bucket_mb` (None:
        `weights.bucket_mb`)."""
        receipts = self._all(TrainerActor.publish, engines, version, bucket_mb)
        receipt = Receipt.merged([receipt for receipt in receipts if receipt])
        assert sorted(receipt.engines) == sorted(map(str, filter(None, engines))), "every engine has its publisher"
        return receipt

    def begin_save(self, folder: Path) -> None:
        self._all(TrainerActor.begin_save, folder)

    def has_saved(self) -> bool:
        """Whether `end_save` hardly waits: the first rank, which writes the index of all shards, is done."""
        ranks, limit_s = self._calls.trainers[:1], self._limits.hang_timeout_s
        return all(self._calls.all(ranks, "has_saved", limit_s, TrainerActor.has_saved))

    def end_save(self) -> dict[str, FileFacts]:
        """Waits for the files; returns the facts of all that a rank digested as it wrote them, by name."""
        written = self._all(TrainerActor.end_save)
        return {name: facts for of_rank in written for name, facts in of_rank.items()}

    def examine(self, paths: Sequence[Path]) -> list[FileFacts]:
        """The facts of files, each of which one rank reads whole."""
        shares = self._all(TrainerActor.examine, paths)
        return [shares[number % len(shares)][number // len(shares)] for number in range(len(paths))]

    def _all(self, method: Callable[Concatenate[TrainerActor, P], T], *args: P.args, **kwargs: P.kwargs) -> list[T]:
        """What `method` of the actor returns, by rank."""
        ranks, limit_s = self._calls.trainers, self._limits.hang_timeout_s
        return self._calls.all(ranks, method.__name__, limit_s, method, *args, **kwargs)


def _begin(
    member: Member, method: Callable[Concatenate[TrainerRank, P], Any], *args: P.args, **kwargs: P.kwargs
) -> Any:
    return member.call(TrainerActor.do, method.__name__, *args, **kwargs)


def require_same_devices(nodes: Sequence[str], before: Sequence[str], now: Sequence[str]) -> None:
    """Raise SlimeError unless the ranks of each node have the devices that ranks of it had before, whichever has which
    of them. `nodes`, and the devices: by rank."""
    places = sorted(zip(nodes, before, strict=True)), sorted(zip(nodes, now, strict=True))
    if places[0] != places[1]:
        had, have = (", ".join(f"{device} of {node}" for node, device in each) for each in places)
        what = f"have the devices {have} now, and engines share {had} with them"
        raise SlimeError(what, where="trainer ranks", todo="Start the same command again to resume.")


def on_the_fullest(values: Sequence[Mapping[str, float]], nodes: Sequence[str]) -> dict[str, float]:
    """The first rank's metrics of `values`, but `memory/..._gib` of the fullest device, and `memory/..._host_gib` of
    the fullest host, by the `nodes` of the ranks."""
    found = dict(values[0])
    for name in found:
        if name.startswith("memory/"):
            held = [of_rank[name] for of_rank in values]
            found[name] = max(_sums(held, nodes) if name.endswith("_host_gib") else held)
    return found


def _sums(held: Sequence[float], nodes: Sequence[str]) -> Collection[float]:
    sums: dict[str, float] = dict.fromkeys(nodes, 0.0)
    for node, of_rank in zip(nodes, held, strict=True):
        sums[node] += of_rank
    return sums.values()
