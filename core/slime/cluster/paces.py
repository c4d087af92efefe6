"""Which trainer ranks are slow, by the seconds of their own passes: what each does before it waits for the others."""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slime.files import disk_errors

FILE = "ranks.json"
MARGIN = 1.5
"""Ratio of a slow rank's seconds to the median of the others, at least."""
LEAST_S = 0.25
"""Seconds that it takes longer than that median, at least: a rank of a tiny model loses some by chance."""
NUM_STEPS = 5
"""Steps in a row in which it does: rows of a step are of unequal lengths."""
log = logging.getLogger(__name__)


@dataclass
class _Rank:
    name: str
    host: str
    seconds: float = 0.0
    ratio: float = 1.0
    num_slow: int = 0


class Paces:
    """The paces of one run's ranks. Those of one replica of the model wait for each other in their passes: they are
    slow together.

    Args:
        names: of the ranks, such as `trainer-0`.
        folder: gets `ranks.json`, a row a rank of the last step.
    """

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self._names, self._path = names, folder / FILE
        self._ranks: list[_Rank] = []

    def begin(self, hosts: Sequence[str]) -> None:
        """Ranks have started, on these hosts."""
        self._ranks = [_Rank(name, host) for name, host in zip(self._names, hosts, strict=True)]

    def step(self, seconds: Sequence[float]) -> dict[str, float]:
        """Metrics of a step's `seconds`, by rank. A host with ranks that have become slow is named in a warning."""
        if len(seconds) < 2:  # or nothing was learnt
            return {}
        ranked = sorted(seconds)
        for rank, own in zip(self._ranks, seconds, strict=True):
            others = _median_of_others(ranked, own)
            rank.seconds, rank.ratio = own, own / others
            rank.num_slow = rank.num_slow + 1 if own > max(MARGIN * others, others + LEAST_S) else 0
        become = [rank for rank in self._ranks if rank.num_slow == NUM_STEPS]
        for host in dict.fromkeys(rank.host for rank in become):
            self._name(host, [rank for rank in become if rank.host == host])
        self._write()
        slowest = seconds.index(ranked[-1])
        mean, most = statistics.fmean(seconds), ranked[-1]
        return {"trainers/seconds_mean": mean, "trainers/seconds_max": most, "trainers/slowest": float(slowest)}

    def _name(self, host: str, ranks: Sequence[_Rank]) -> None:
        worst = max(ranks, key=lambda rank: rank.ratio)
        more = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
        log.warning(
            "%s%s on host %s: slow in each of %d steps: its own passes took %.3g s in the last one, %.1f times the "
            "median of the others. See to the host, or start the same command with cluster.exclude=[%s].",
            *(worst.name, more, host, NUM_STEPS, worst.seconds, worst.ratio, host),
        )

    def _write(self) -> None:
        aside = self._path.with_name(f".{FILE}.new")
        rows = [{**vars(rank), "is_slow": rank.num_slow >= NUM_STEPS} for rank in self._ranks]
        with disk_errors(self._path):
            aside.write_text(json.dumps(rows))
            aside.replace(self._path)  # not synced: the next step writes it again


def _median_of_others(ranked: Sequence[float], own: float) -> float:
    """Of sorted numbers without one that is `own`."""
    place = ranked.index(own)
    return statistics.median([*ranked[:place], *ranked[place + 1 :]])
