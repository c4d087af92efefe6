"""The process groups in which trainer ranks broadcast to the engines, a group for each such rank: a source."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from slime.net import join_store, serve_store
from slime.topology.transport import sources
from slime.weights.publisher.engine_link import EngineLink
from slime.weights.publisher.handover import Sender, TrainerSide, results
from slime_sglang.broadcast.source import Broadcast, Sources
from slime_sglang.broadcast.stream import part_of


class BroadcastGroups(Sender):
    """The sources of `slime.topology.transport.sources`; the first talks to the engines."""

    def __init__(self, side: TrainerSide) -> None:
        ranks = self.receivers = sources(side.cfg.weights, side.cfg.cluster)
        self._ranks, self._device, self._host = ranks, side.device, side.host
        self._timeout = timedelta(seconds=side.cfg.rollout.request_timeout_s)
        self._peers = dist.new_group(list(ranks), backend="gloo") if len(ranks) > 1 else None
        self._joined: tuple[dist.ProcessGroup, TCPStore] | None = None
        self._engines: list[str] = []
        self._left: list[tuple[dist.ProcessGroup, TCPStore] | None] = []
        self._num_begun = 0

    def begin(
        self, version: int, links: Sequence[EngineLink], pool: ThreadPoolExecutor, senders: Sequence[int | None]
    ) -> Broadcast | None:
        self._num_begun += 1
        rank = dist.get_rank()
        if rank in self._ranks and self._has_others(links):
            self._left.append(self._joined)  # to delete a group waits for broadcasts that a dead engine never joins
            self._joined = self._join(links, pool)
        if self._joined is None or rank not in senders:
            return None
        group, store = self._joined
        members = {_name(sender, store): place for place, sender in enumerate(self._ranks) if sender in senders}
        among = Sources(f"publish {self._num_begun}", members, self._peers)
        return Broadcast(links, pool, (_name(rank, store), group), self._device, store, among=among)

    def _has_others(self, links: Sequence[EngineLink]) -> bool:
        """True if these engines are others than those of the version before; collective over the sources."""
        engines = [link.url for link in links]
        told = [engines]
        if self._peers:
            dist.broadcast_object_list(told, group=self._peers, src=self._ranks[0])
        before, self._engines = self._engines, told[0]
        return before != self._engines

    def _join(self, links: Sequence[EngineLink], pool: ThreadPoolExecutor) -> tuple[dist.ProcessGroup, TCPStore]:
        """Collective over the sources."""
        backend = "nccl" if self._device.type == "cuda" else "gloo"
        told: list[tuple[str, int, int]] = [("", 0, 0)]
        rank, first = dist.get_rank(), self._ranks[0]
        if rank == first:
            results([pool.submit(link.connect) for link in links])
            store = serve_store(self._host, timeout=self._timeout)
            told = [(store.host, store.port, num_ranks(links))]
        if self._peers:
            dist.broadcast_object_list(told, group=self._peers, src=first)
        if rank != first:
            [(host, port, num_engine_ranks)] = told
            store = join_store(host, port, self._timeout)
            return join_as_source(_name(rank, store), store, backend, num_engine_ranks), store
        group = join_engines(links, pool, _name(rank, store), store, backend)
        for other in self._ranks[1:]:
            results(ask_to_join(links, pool, _name(other, store), store, backend))
        return group, store


def _name(rank: int, store: TCPStore) -> str:
    """Name of a source and its process group in messages; other trainers of the same engines have another store."""
    return f"trainer rank {rank} of {store.host}:{store.port}"


def join_engines(
    links: Sequence[EngineLink], pool: ThreadPoolExecutor, name: str, store: TCPStore, backend: str
) -> dist.ProcessGroup:
    """The process group `name` of this process (rank 0, which serves `store`) and every rank of every engine."""
    joining = ask_to_join(links, pool, name, store, backend)
    group = join_as_source(name, store, backend, num_ranks(links))
    results(joining)
    return group


def num_ranks(links: Sequence[EngineLink]) -> int:
    return sum(link.num_ranks for link in links)


def ask_to_join(
    links: Sequence[EngineLink], pool: ThreadPoolExecutor, name: str, store: TCPStore, backend: str
) -> list[Future[None]]:
    """Have the engines join the process group `name`, of which a source is rank 0."""
    starts = [1 + num_ranks(links[:index]) for index in range(len(links))]
    world_size = 1 + num_ranks(links)
    return [
        pool.submit(link.join, (store.host, store.port), start, world_size, name, backend)
        for link, start in zip(links, starts, strict=True)
    ]


def join_as_source(name: str, store: TCPStore, backend: str, num_engine_ranks: int) -> dist.ProcessGroup:
    """A source's end of it. Made by SGLang's own function, as the engines' ends are."""
    from sglang.srt.utils.common import init_custom_process_group

    ours = part_of(store, name)  # as the function itself does with a store that it opens, on the engines' side
    size = 1 + num_engine_ranks
    group = init_custom_process_group(backend=backend, store=ours, world_size=size, rank=0, group_name=name)
    assert isinstance(group, dist.ProcessGroup)
    return group
