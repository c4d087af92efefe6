"""SGLang as `slime.engines.software.Software`; each part is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from slime.config.schema import Device, Role, SlimeConfig
from slime.engine_client.client import Engine, EngineClient
from slime.engines.software import Server
from slime.net import Endpoint
from slime.topology.topology import Topology


class SGLang:
    """What slime asks of SGLang, from outside its processes."""

    def server(self, topology: Topology, *which: Any, **options: Any) -> Server:
        from slime_sglang.engine.driver.process import EngineProcess

        return EngineProcess(topology, *which, **options)

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
