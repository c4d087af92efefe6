"""What a plan says of publishing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from slime.sizes.model import ModelSizes
from slime.sizes.version import version_bytes
from slime.topology.adapters import adapters_beside
from slime.topology.links import Link
from slime_tools.publish.links import publish_links
from slime_tools.publish.seconds import PublishSeconds, publish_lines, publish_seconds


class Publishing:
    """A `slime.sizes.estimate.PlanPart`.

    Attributes:
        links: what carries a published version; none without engines.
        first_bytes: of the first version of an engine, if the others are of adapters alone; 0: all are alike.
        seconds: of publishing one, where that can be estimated.
    """

    def __init__(self, sizes: ModelSizes) -> None:
        self._topology = sizes.topology
        self.first_bytes = 0
        if adapters_beside(sizes.topology.config.train):
            sent = version_bytes(sizes.topology, [*sizes.weights, *sizes.adapters], sizes.model)
            self.first_bytes, sizes = sent, dataclasses.replace(sizes, weights=sizes.adapters)
        self.links = publish_links(sizes.topology, sizes.weights, sizes.model)
        self.seconds = None if self.first_bytes else publish_seconds(sizes, self.links)  # adapters were not measured

    def sections(self) -> Iterator[tuple[str, list[str]]]:
        if self.links:
            lines = [*publish_lines(self._topology, self.links, self.seconds)]
            if self.first_bytes:
                what = "an engine's first version has the model's weights too"
                lines += [f"  {'first':<10} {what}: {self.first_bytes / 1e9:,.3f} GB"]
            yield "a published version", lines

    def document(self) -> Mapping[str, Any]:
        return {
            **({"publish_first_bytes": self.first_bytes} if self.first_bytes else {}),
            "publish": [_link(link) for link in self.links],
            "publish_seconds": _seconds(self.seconds) if self.seconds else None,
        }


def _seconds(seconds: PublishSeconds) -> dict[str, float]:
    parts = {**dataclasses.asdict(seconds), "total": seconds.total}
    return {name: round(value, 3) for name, value in parts.items()}


def _link(link: Link) -> dict[str, Any]:
    ends = {"from": link.source, "to": link.target}
    return {"does": link.verb.name, **ends, "over": link.over.name, "bytes": link.num_bytes}
