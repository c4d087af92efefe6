"""SGLang as `slime.engines.software.Software`; each part is imported when it is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from slime.config.schema import Device, Role, SlimeConfig
from slime.engine_client.client import Engine, EngineClient
from slime.engines.software import Server
from slime.net import LOOPBACK_SETTINGS, Endpoint
from slime.topology.topology import Topology


class SGLang:
    """What slime asks of SGLang, from outside its processes."""

    def server(self, topology: Topology, *which: Any, **options: Any) -> Server:
        from slime_sglang.engine.driver.process import EngineProcess

        return EngineProcess(topology, *which, **options)

    def starting(self, topology: Topology) -> AbstractContextManager[None]:
        from slime_sglang.engine.driver.forked import forking

        cluster = topology.cluster
        # Engines of a Ray that is there are no processes of this one; those that outlive it would end with the fork's.
        if cluster.on_gpus or not topology.every_engine or cluster.ray_address or cluster.driver_grace_s:
            return nullcontext()
        return forking({**LOOPBACK_SETTINGS, **os.environ, **topology.every_engine[0].environment})

    def client(self, endpoint: Endpoint, timeout_s: float, *, log: Path | None = None) -> EngineClient:
        from slime_sglang.engine.driver.client import SGLangClient

        return SGLangClient(endpoint, timeout_s, log=log)

    async def pairs(self, roles: Iterable[Role], clients: Sequence[Any]) -> Engine:
        from slime_sglang.engine.driver.pairs import Pairs

        return await Pairs.of(roles, clients)

    async def require_room(self, clients: Sequence[Any], cfg: SlimeConfig) -> None:
        from slime_sglang.engine.driver.room import require_room

        await require_room(clients, cfg)

    def require_transfer(self, device: Device) -> None:
        from slime_sglang.engine.driver.kv_transfer import require_mooncake

        require_mooncake(device)


SGLANG = SGLang()
