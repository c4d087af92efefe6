"""The transport `mailbox`: rank 0 writes a version to one file, and every engine reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slime.config.schema import WeightsConfig
from slime.errors import SlimeError
from slime.hookspecs import hookimpl
from slime.topology.transport_protocol import Transport


@dataclass
class MailboxWeights(WeightsConfig):
    mailbox: str = "/dev/shm"
    """With `transport: mailbox`, the folder of the file."""


class Mailbox:
    sender = "slime_mailbox.sender:MailboxSender"
    copy_rate = None

    def problems(self, topology) -> Iterator[SlimeError]:
        if not Path(topology.weights.mailbox).is_dir():
            yield SlimeError("is no folder", where="weights.mailbox", todo="Make it.")

    def links(self, topology, num_bytes):
        from slime.topology.links import Link, Medium, Verb

        for engine in topology.engines:
            yield Link(Verb.hand_over, "trainer 0", engine.name, Medium.disk, num_bytes)


@hookimpl
def slime_transports() -> Mapping[str, Callable[[], Transport]]:
    return {"mailbox": Mailbox}


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    return {"transport/mailbox": MailboxWeights}
