"""Weights published through files for slime: the transport `disk`, and the verb `follow`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slime.contracts import VerbFactory
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.topology.transport_protocol import Transport


@hookimpl
def slime_transports() -> Mapping[str, Callable[[], Transport]]:
    return {"disk": _disk}


@hookimpl
def slime_verbs() -> Mapping[str, VerbFactory]:
    help = "engines outside a run take in the weights that it publishes to a folder"
    return {"follow": VerbFactory(help, "slime_sglang.disk.follow")}


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    from slime_sglang.disk.options import DiskWeights

    return {"transport/disk": DiskWeights}


def _disk() -> Transport:
    from slime_sglang.disk.transport import DiskTransport

    return DiskTransport()
