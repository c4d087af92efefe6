"""What a plan says of publishing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from slime.sizes.model import ModelSizes
from slime.topology.links import Link
from slime_plugin_publish.links import publish_links
from slime_plugin_publish.seconds import PublishSeconds, publish_lines, publish_seconds


class Publishing:
    """A `slime.plan.part.PlanPart`.

    Attributes:
        links: what carries a published version; none without engines.
        seconds: of publishing one, where that can be estimated.
    """

    def __init__(self, sizes: ModelSizes) -> None:
        self._topology = sizes.topology
        self.links = publish_links(sizes.topology, sizes.weights, sizes.model)
        self.seconds = publish_seconds(sizes, self.links)

    def sections(self) -> Iterator[tuple[str, list[str]]]:
        if self.links:
            yield "a published version", [*publish_lines(self._topology, self.links, self.seconds)]

    def document(self) -> Mapping[str, Any]:
        return {
            "publish": [_link(link) for link in self.links],
            "publish_seconds": _seconds(self.seconds) if self.seconds else None,
        }


def _seconds(seconds: PublishSeconds) -> dict[str, float]:
    parts = {**dataclasses.asdict(seconds), "total": seconds.total}
    return {name: round(value, 3) for name, value in parts.items()}


def _link(link: Link) -> dict[str, Any]:
    ends = {"from": link.source, "to": link.target}
    return {"does": link.verb.name, **ends, "over": link.over.name, "bytes": link.num_bytes}
