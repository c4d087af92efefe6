"""What a run has sampled and learnt, without all that two runs never have in common."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slime.observe.metrics import read_rows

APART = re.compile(r"time$|.*seconds|tokens_per_s$|engines/|trainers/|memory/|hosts/|publish/num_bytes")
"""Names of metrics that tell times, memory, what became of single processes, and what was sent to engines, of which one
that is back gets more: a whole version instead of a delta, or a model beside its adapter."""
_STEP = re.compile(r"(stage|step)$")


@dataclass(frozen=True)
class Outcome:
    """Of one run directory.

    Attributes:
        metrics: (stage, step) -> name -> value, of every row.
        samples: name of a file in `samples/` -> digest of its bytes.
        weights: name of an exported file -> likewise.
    """

    metrics: Mapping[tuple[str, int], Mapping[str, float]]
    samples: Mapping[str, str]
    weights: Mapping[str, str]

    @staticmethod
    def of(run: Path) -> Outcome:
        metrics: dict[tuple[str, int], dict[str, float]] = {}
        for row in read_rows(run / "metrics.jsonl"):
            kept = {name: value for name, value in row.items() if not APART.match(name) and not _STEP.match(name)}
            metrics.setdefault((row["stage"], row["step"]), {}).update(kept)
        samples = {file.stem: _digest(file.read_bytes()) for file in (run / "samples").glob("*.jsonl")}
        files = [file for folder in ("export", "adapter") for file in (run / folder).glob("*.safetensors")]
        weights = {str(file.relative_to(run)): _digest(file.read_bytes()) for file in files}
        return Outcome({step: values for step, values in metrics.items() if values}, samples, weights)

    def differences(self, other: Outcome) -> Iterator[str]:
        """What is not the same to the bit in both, in a few words each."""
        for step in sorted(self.metrics.keys() | other.metrics.keys()):
            mine, own = self.metrics.get(step, {}), other.metrics.get(step, {})
            names = sorted(name for name in mine.keys() | own.keys() if repr(mine.get(name)) != repr(own.get(name)))
            if names:
                yield f"{' '.join(map(str, step))}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
        for what in ("samples", "weights"):
            mine, own = getattr(self, what), getattr(other, what)
            if apart := sorted(name for name in mine.keys() | own.keys() if mine.get(name) != own.get(name)):
                yield f"{what}: {', '.join(apart[:3])}{', ...' if len(apart) > 3 else ''}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
