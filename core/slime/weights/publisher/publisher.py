"""One trainer rank's part in publishing: which engines it serves, and over which transport."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from slime.config.schema import Device, SlimeConfig, Transport
from slime.net import Endpoint, serve_store
from slime.topology.engines import engine_groups
from slime.topology.fp8 import rollout_format
from slime.topology.server_fields import drafts_with_own_layer
from slime.topology.transport import publishers, transport_of
from slime.types import Receipt
from slime.weights.publisher.disk import Disk, VersionFolder
from slime.weights.publisher.engine_link import EngineLink
from slime.weights.publisher.publish import drain, publish_over
from slime.weights.publisher.quantized import check_device, quantized
from slime.weights.publisher.transport import Broadcast, SharedMemory, join_engines, results
from slime.weights.publisher.transport import Transport as Handover
from slime.weights.shared.bucket import CudaBucket, SharedBucket

if TYPE_CHECKING:
    from slime.train.trainer import Trainer

_GROUP = "slime-weights"
"""Name of the process group of publisher and engines."""


class Publisher:
    """Made once on every rank of the trainer, at the same time: it makes process groups.

    Who serves whom is `slime.topology.transport.publishers`; where that is not rank 0 alone, every rank gathers all
    weights.

    Args:
        host: address at which the engines' hosts reach this one.
    """

    def __init__(self, cfg: SlimeConfig, trainer: Trainer, host: str, engines: Sequence[Endpoint]) -> None:
        self._cfg, self._trainer, self._host = cfg, trainer, host
        self._serves, self._served = False, list[Endpoint]()
        self._fp8 = rollout_format(cfg)
        if self._fp8:
            check_device(trainer.device)
        self._peers: dist.ProcessGroup | None = None
        self._stream: tuple[dist.ProcessGroup, TCPStore] | None = None
        self._folder = VersionFolder(Path(cfg.weights.path), cfg.weights.full_every)
        self._everywhere = False
        for engine, ranks in zip(engines, publishers(cfg), strict=True):
            self._take(engine, list(ranks))

    def _take(self, engine: Endpoint, ranks: list[int]) -> None:
        """Collective: `engine` gets its weights from `ranks`."""
        self._everywhere |= ranks != [0]
        peers = dist.new_group(ranks, backend="gloo") if len(ranks) > 1 else None
        if dist.get_rank() in ranks:
            self._serves, self._peers = True, peers
        if dist.get_rank() == ranks[0]:
            self._served.append(engine)

    def publish(self, version: int, bucket_mb: int) -> Receipt | None:
        """Collective: hand the trainer's weights over as `version`. None on ranks that serve no engine.

        Args:
            bucket_mb: MiB of tensors handed over at once.

        Raises:
            SlimeError: as `slime.weights.publisher.publish.publish`; on the ranks that serve the engine.
        """
        with_mtp = any(drafts_with_own_layer(group.sglang) for group in engine_groups(self._cfg))
        bucket_bytes = bucket_mb * 2**20
        tensors = self._trainer.export(bucket_bytes, everywhere=self._everywhere, with_mtp=with_mtp)
        if not self._serves:
            drain(tensors)
            return None
        if self._fp8:
            tensors = quantized(tensors, self._fp8, bucket_bytes)
        links = [EngineLink(engine, version, self._cfg.rollout.request_timeout_s) for engine in self._served]
        with ThreadPoolExecutor(max(len(links), 1)) as pool:
            transport = self._transport(links, pool, version)
            return publish_over(transport, tensors, version, bucket_bytes)

    def _transport(self, links: Sequence[EngineLink], pool: ThreadPoolExecutor, version: int) -> Handover:
        device, chosen = self._trainer.device, transport_of(self._cfg)
        if chosen is Transport.disk:
            return Disk(links, pool, self._folder, version, device)
        if chosen is Transport.ipc:
            kind = CudaBucket if self._cfg.cluster.device is Device.cuda else SharedBucket
            return SharedMemory(links, pool, partial(kind, device=device), self._peers)
        if self._stream is None:
            results([pool.submit(link.connect) for link in links])
            backend = "nccl" if device.type == "cuda" else "gloo"
            store = serve_store(self._host, timeout=timedelta(seconds=self._cfg.rollout.request_timeout_s))
            self._stream = join_engines(links, pool, _GROUP, store, backend), store
        group, store = self._stream
        return Broadcast(links, pool, (_GROUP, group), device, store)
