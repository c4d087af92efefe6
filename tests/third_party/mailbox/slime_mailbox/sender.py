"""The trainer's side."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import torch

from slime.weights.publisher.handover import Outcome, Sender, TrainerSide, results
from weight_buckets.bucket import Bucket
from weight_buckets.receipt import NOTE_KEY


class MailboxSender(Sender):
    def __init__(self, side: TrainerSide) -> None:
        self.receivers, self._side = side.receivers, side

    def begin(self, version, links, pool, senders):
        if not self._side.serves:
            return None
        return Letter(links, pool, Path(self._side.cfg.weights.mailbox, f"version-{version}.pt"))


class Letter:
    """One version."""

    num_buckets = 1

    def __init__(self, links, pool, path: Path) -> None:
        self.links, self._pool, self._path, self._buckets = links, pool, path, []

    def new_bucket(self, capacity: int) -> Bucket:
        return Bucket(capacity, torch.device("cpu"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._path.unlink(missing_ok=True)

    def send(self, bucket, note) -> None:
        memory = bucket.memory[: bucket.used].clone()
        self._buckets.append({"header": bucket.header.to_dict(), NOTE_KEY: note.to_dict(), "flattened_tensor": memory})

    def finish(self, sent) -> Outcome:
        torch.save(self._buckets, self._path)
        for link in self.links:
            link.ask("mailbox", {"file": str(self._path)})
        return Outcome(sent, results([self._pool.submit(link.received) for link in self.links]), sent["bytes"])
