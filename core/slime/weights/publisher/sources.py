"""The trainer ranks that broadcast one version, and how the first of them learns that another has ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch
import torch.distributed as dist

from slime.errors import SlimeError
from slime.weights.publisher.engine_link import Summary

_REPORT_BYTES = 512
Report = tuple[Summary, float]
"""Of a source that has sent its part: what it was, and GB/s."""


@dataclass(frozen=True)
class Sources:
    """Who broadcasts a version.

    Attributes:
        stream: name of this publish.
        members: the name of each source and its place in `group`; the first talks to the engines.
        group: process group of the sources, over gloo: what ends when one of them does.
    """

    stream: str
    members: Mapping[str, int]
    group: dist.ProcessGroup | None

    def report(self, report: Report | None) -> None:
        """Tell the first source that this one has ended; None: in vain."""
        message = torch.zeros(_REPORT_BYTES, dtype=torch.uint8)
        text = json.dumps(report).encode()
        message[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        with suppress(RuntimeError):  # the first one is gone, which its own host says
            dist.send(message, group=self.group, group_dst=next(iter(self.members.values())))

    def report_of(self, name: str) -> Report:
        """Wait for the end of another source.

        Raises:
            SlimeError: it failed, or its process ended.
        """
        message = torch.zeros(_REPORT_BYTES, dtype=torch.uint8)
        try:
            dist.recv(message, group=self.group, group_src=self.members[name])
        except RuntimeError as error:
            raise self._gone(name, f"is gone: {error}") from error
        report: Report | None = json.loads(bytes(message.tolist()).rstrip(b"\0"))
        if report is None:
            raise self._gone(name, "could not send its part of the weights")
        return report

    def _gone(self, name: str, what: str) -> SlimeError:
        todo = "Read its log in the run directory, then restart: the run resumes from its last checkpoint."
        return SlimeError(f"{name} {what}", where="publish by several trainer ranks", todo=todo)
