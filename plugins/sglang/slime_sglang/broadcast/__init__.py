"""Weights broadcast to the engines of a slime run over NCCL or gloo: the transport `broadcast`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.topology.transport_protocol import Transport


@hookimpl
def slime_transports() -> Mapping[str, Callable[[], Transport]]:
    return {"broadcast": _broadcast}


def _broadcast() -> Transport:
    from slime_sglang.broadcast.transport import BroadcastTransport

    return BroadcastTransport()
