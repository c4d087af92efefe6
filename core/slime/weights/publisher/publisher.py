"""One trainer rank's part in publishing: which engines it serves, and over which transport."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pkgutil import resolve_name

import torch.distributed as dist

from slime.config.choices import Publish
from slime.errors import SlimeError
from slime.net import Endpoint
from slime.topology.adapters import adapters_beside
from slime.topology.topology import Topology
from slime.types import Receipt
from slime.weights.portions import Receivers, Weights, drain
from slime.weights.publisher.engine_link import EngineLink
from slime.weights.publisher.handover import Sender, TrainerSide
from slime.weights.publisher.publish import publish_buckets
from slime.weights.quantized import quantizer_of
from slime.weights.transports import transport_of


class Publisher:
    """Made once on every rank of the trainer, at the same time: it makes process groups.

    Who serves whom is `slime.topology.topology.Engine.publishers`; where that is not rank 0 alone, every rank
    gathers all weights. How is the sender's business (`slime.topology.transport_protocol.Transport`). Engines'
    hosts reach this one at `host`.
    """

    def __init__(self, topology: Topology, trainer: Weights, host: str) -> None:
        cfg = topology.config
        self._topology, self._trainer, self._timeout_s = topology, trainer, cfg.rollout.request_timeout_s
        self._flushes = not (cfg.rollout.max_staleness and cfg.rollout.publish is Publish.keep)
        self._beside = adapters_beside(cfg.train) is not None
        # Engines outside the run are told of a version by the driver, once rank 0 has stored it.
        self._serves, self._served = bool(topology.outside) and dist.get_rank() == 0, list[int]()
        self._quantizer = quantizer_of(topology.weight_format) if topology.weight_format else None
        if self._quantizer:
            self._quantizer.require_device(trainer.device)
        own: dist.ProcessGroup | None = None
        receivers: Receivers = (0,)
        for engine in topology.engines:  # collective: the process groups are made by all ranks
            ranks = list(engine.publishers)
            receivers = (0,) if receivers and ranks == [0] else None
            peers = dist.new_group(ranks, backend="gloo") if len(ranks) > 1 else None
            if dist.get_rank() in ranks:
                self._serves, own = True, peers
            if dist.get_rank() == ranks[0]:
                self._served.append(engine.index)
        side = TrainerSide(cfg, trainer.device, host, self._serves, own, receivers)
        self._sender: Sender = resolve_name(transport_of(topology.transport).sender)(side)

    def publish(self, engines: Sequence[Endpoint | None], version: int, bucket_mb: int) -> Receipt | None:
        """Collective: hand the trainer's weights over as `version`, `bucket_mb` MiB at once. None on ranks that serve
        no engine. An engine of None is left out.

        Raises:
            SlimeError: as `slime.weights.publisher.publish.publish_buckets`; on the ranks that send weights.
        """
        bucket_bytes, drafts = bucket_mb * 2**20, self._topology.drafts
        receivers, quantizer = self._sender.receivers, self._quantizer
        asked = [endpoint for index in self._served if (endpoint := engines[index])]
        links = [EngineLink(endpoint, version, self._timeout_s, flushes=self._flushes) for endpoint in asked]
        whole = not self._beside or _some_lack_weights(links)
        export = self._trainer.export_plan(bucket_bytes, receivers, drafts=drafts, quantizer=quantizer, whole=whole)
        with ThreadPoolExecutor(len(links) + len(export.receivers)) as pool:
            handover = self._sender.begin(version, links, pool, export.receivers)
            if handover is None:
                drain(export.run())
                return None
            receipt = publish_buckets(handover, export.run(), version, bucket_bytes)
        return receipt if self._serves else None


def _some_lack_weights(links: Sequence[EngineLink]) -> bool:
    """Collective: whether an engine that some rank serves has no version whole; one that died is named later."""
    lacking = False
    for link in links:
        try:
            lacking |= not link.weight_version().isdecimal()
        except SlimeError:
            lacking = True
    told = [lacking] * dist.get_world_size()
    dist.all_gather_object(told, lacking)
    return any(told)
