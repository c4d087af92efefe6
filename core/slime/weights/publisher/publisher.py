"""One trainer rank's part in publishing: which engines it serves, and over which transport."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from slime.config.schema import Device, SlimeConfig, Transport
from slime.errors import SlimeError
from slime.net import Endpoint
from slime.topology.engines import engine_groups
from slime.topology.fp8 import rollout_format
from slime.topology.server_fields import drafts_with_own_layer
from slime.topology.transport import publishers, sources, transport_of
from slime.types import Receipt
from slime.weights.megatron.export import Receivers, drain
from slime.weights.publisher.broadcast_groups import BroadcastGroups
from slime.weights.publisher.disk import Disk, VersionFolder
from slime.weights.publisher.engine_link import EngineLink
from slime.weights.publisher.publish import publish_buckets
from slime.weights.publisher.transport import SharedMemory
from slime.weights.publisher.transport import Transport as Handover
from slime.weights.shared.bucket import CudaBucket, SharedBucket

if TYPE_CHECKING:
    from slime.train.trainer import Trainer


class Publisher:
    """Made once on every rank of the trainer, at the same time: it makes process groups.

    Who serves whom is `slime.topology.transport.publishers`; where that is not rank 0 alone, every rank gathers all
    weights. What is broadcast may come from several ranks (`slime.topology.transport.sources`).

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
        self._folder = VersionFolder(Path(cfg.weights.path), cfg.weights.full_every)
        self._receivers: Receivers = (0,)
        for engine, ranks in zip(engines, publishers(cfg), strict=True):
            self._take(engine, list(ranks))
        self._broadcasts: BroadcastGroups | None = None
        if transport_of(cfg) is Transport.broadcast:
            self._receivers = sources(cfg)
            self._broadcasts = BroadcastGroups(self._receivers, trainer.device, host, cfg.rollout.request_timeout_s)

    def _take(self, engine: Endpoint, ranks: list[int]) -> None:
        """Collective: `engine` gets its weights from `ranks`."""
        self._receivers = (0,) if self._receivers and ranks == [0] else None
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
            SlimeError: as `slime.weights.publisher.publish.publish_buckets`; on the ranks that send weights.
        """
        drafts = any(drafts_with_own_layer(group.sglang) for group in engine_groups(self._cfg))
        bucket_bytes = bucket_mb * 2**20
        export = self._trainer.export_plan(bucket_bytes, self._receivers, drafts=drafts, fp8=self._fp8)
        links = [EngineLink(engine, version, self._cfg.rollout.request_timeout_s) for engine in self._served]
        with ThreadPoolExecutor(len(links) + len(export.receivers)) as pool:
            transport = self._transport(links, pool, version, export.receivers)
            if transport is None:
                drain(export.run())
                return None
            receipt = publish_buckets(transport, export.run(), version, bucket_bytes)
        return receipt if self._serves else None

    def _transport(
        self, links: Sequence[EngineLink], pool: ThreadPoolExecutor, version: int, senders: Sequence[int | None]
    ) -> Handover | None:
        """None: this rank sends nothing."""
        if self._broadcasts:
            return self._broadcasts.begin(links, pool, senders)
        if not self._serves:
            return None
        if transport_of(self._cfg) is Transport.disk:
            return Disk(links, pool, self._folder, version, self._trainer.device)
        kind = CudaBucket if self._cfg.cluster.device is Device.cuda else SharedBucket
        return SharedMemory(links, pool, partial(kind, device=self._trainer.device), self._peers)


def check_device(device: torch.device) -> None:
    """Refuse GPUs on which SGLang computes with other values than those it loads.

    Raises:
        SlimeError: it changes the layout of FP8 weights while they load: on Blackwell with scales rounded to powers
            of two, on GPUs before Ada for kernels that multiply in bf16. A publish would not reach what it made.
    """
    if device.type != "cuda":
        return
    major, minor = torch.cuda.get_device_capability(device)
    if major >= 10 or (major, minor) < (8, 9):
        name = torch.cuda.get_device_name(device)
        what = f"{name}: SGLang changes the layout of FP8 weights there, where no publish reaches"
        todo = "Use H100 or H200 GPUs, or rollout.fp8=null: to run a checkpoint in FP8, convert it to bf16."
        raise SlimeError(what, where="rollout.fp8", todo=todo)
