"""The trainer ranks that broadcast versions, and the process groups that each of them has with the engines."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from slime.net import join_store, serve_store
from slime.weights.publisher.engine_link import EngineLink
from slime.weights.publisher.sources import Sources
from slime.weights.publisher.transport import (
    Broadcast,
    ask_to_join,
    join_as_source,
    join_engines,
    num_ranks,
    results,
)


class Broadcasts:
    """Made once on every rank of the trainer, at the same time.

    Args:
        ranks: the sources; the first talks to the engines.
        host: address at which the engines' hosts, and the other sources, reach this one.
    """

    def __init__(self, ranks: Sequence[int], device: torch.device, host: str, timeout_s: float) -> None:
        self._ranks, self._device, self._host = ranks, device, host
        self._timeout = timedelta(seconds=timeout_s)
        self._peers = dist.new_group(list(ranks), backend="gloo") if len(ranks) > 1 else None
        self._joined: tuple[dist.ProcessGroup, TCPStore] | None = None
        self._num_begun = 0

    def begin(
        self, links: Sequence[EngineLink], pool: ThreadPoolExecutor, senders: Sequence[int | None]
    ) -> Broadcast | None:
        """Collective: a new version's transport on each of its `senders`, None on other ranks."""
        self._num_begun += 1
        rank = dist.get_rank()
        if rank in self._ranks and self._joined is None:
            self._joined = self._join(links, pool)
        if self._joined is None or rank not in senders:
            return None
        group, store = self._joined
        members = {_name(sender, store): place for place, sender in enumerate(self._ranks) if sender in senders}
        among = Sources(f"publish {self._num_begun}", members, self._peers)
        return Broadcast(links, pool, (_name(rank, store), group), self._device, store, among=among)

    def _join(self, links: Sequence[EngineLink], pool: ThreadPoolExecutor) -> tuple[dist.ProcessGroup, TCPStore]:
        """Collective over the sources, each of which gets a group of its own with all engine ranks."""
        backend = "nccl" if self._device.type == "cuda" else "gloo"
        told: list[tuple[str, int, int]] = [("", 0, 0)]
        rank, first = dist.get_rank(), self._ranks[0]
        if rank != first:
            dist.broadcast_object_list(told, group=self._peers, src=first)
            [(host, port, num_engine_ranks)] = told
            store = join_store(host, port, self._timeout)
            return join_as_source(_name(rank, store), store, backend, num_engine_ranks), store
        results([pool.submit(link.connect) for link in links])
        store = serve_store(self._host, timeout=self._timeout)
        if self._peers:
            told = [(store.host, store.port, num_ranks(links))]
            dist.broadcast_object_list(told, group=self._peers, src=first)
        group = join_engines(links, pool, _name(rank, store), store, backend)
        for other in self._ranks[1:]:
            results(ask_to_join(links, pool, _name(other, store), store, backend))
        return group, store


def _name(rank: int, store: TCPStore) -> str:
    """Of a source and its process group, as messages tell it; other trainers of the same engines have another store."""
    return f"trainer rank {rank} of {store.host}:{store.port}"
