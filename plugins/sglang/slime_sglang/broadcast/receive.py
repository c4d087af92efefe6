"""A version from broadcasts (`slime_sglang.broadcast.stream`) into an engine, on every one of its ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from slime_sglang.broadcast import stream
from slime_sglang.engine.side import EngineSide


def receive(told: Mapping[str, Any], side: EngineSide) -> Any:
    """Take in the version of `told["sources"]`, process groups, by part `told["name"]` of the TCPStore at
    `told["store"]`. Returns what `side.load` returned of the last bucket."""
    version = stream.part_of(stream.publishers_store(*told["store"], told["timeout_s"]), told["name"])
    groups = {name: side.groups[name] for name in told["sources"]}
    sources = [stream.Source(name, stream.part_of(version, name), group) for name, group in groups.items()]
    buckets = stream.receive_buckets(sources, side.device)
    try:
        for result in map(side.load, buckets):  # noqa: B007
            pass  # A name for the bucket would keep its old memory while the same place grows for the next one.
    except RuntimeError:
        stream.publishers_store.cache_clear()  # the connection may be what failed
        raise
    finally:
        deque(buckets, maxlen=0)  # after a fault too: a broadcast needs all its ranks
    return result
