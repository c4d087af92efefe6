"""`samples/`: what the model answered, a JSON object a sample, a file a step and an evaluation.

A big run keeps a share of its samples: whole groups, spread evenly over those of the step, up to `observe.samples_mb`.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slime import files
from slime.errors import SlimeError
from slime.types import Decision, Group, Sample

MB = 10**6
KEPT = "kept"
"""What the filter said, in a row; of a dropped group it is the reason."""

Row = dict[str, Any]

log = logging.getLogger(__name__)


class SampleLog:
    """Writes the samples of one run.

    Args:
        folder: `<run>/samples`.
        limit_mb: megabytes (10^6 bytes) a file at most; 0 writes none.
    """

    def __init__(self, folder: Path, limit_mb: float) -> None:
        self._folder, self._limit = folder, limit_mb * MB

    def step(self, step: int, judged: Sequence[tuple[Group, Decision]]) -> None:
        """Write `step-<step>.jsonl`, in place of the one that an abandoned step may have left.

        Raises:
            SlimeError: the disk is full.
        """
        decisions = {group.id: KEPT if decision.keep else decision.reason for group, decision in judged}
        self._write(f"step-{step:06d}.jsonl", [group for group, _ in judged], decisions)

    def evaluation(self, step: int, groups: Sequence[Group]) -> None:
        """Write `eval-<step>.jsonl`, alike.

        Raises:
            SlimeError: the disk is full.
        """
        self._write(f"eval-{step:06d}.jsonl", groups, {})

    def _write(self, name: str, groups: Sequence[Group], decisions: Mapping[str, str]) -> None:
        if not self._limit:
            return
        lines = {group.id: _lines(group, decisions.get(group.id)) for group in groups}
        kept = _within(lines, self._limit)
        with files.disk_errors(self._folder):
            files.write_atomic(self._folder / name, b"".join(lines[group] for group in sorted(kept)))


def _lines(group: Group, decision: str | None) -> bytes:
    return b"".join(json.dumps(_row(group, sample, decision), default=str).encode() + b"\n" for sample in group.samples)


def _row(group: Group, sample: Sample, decision: str | None) -> Row:
    verdict = sample.verdict
    judged: Row = {"reward": None}
    if verdict is not None:
        judged = {"reward": verdict.value, "verdict": verdict.kind, "reason": verdict.reason, "parts": verdict.parts}
    return {
        "prompt": group.id,
        "sample": sample.index,
        **judged,
        **({} if decision is None else {"filter": decision}),
        "finish": sample.status,
        "num_tokens": len(sample.response_tokens),
        "weight_versions": [[span.version, span.num_tokens] for span in sample.spans],
        "label": group.prompt.label,
        "messages": list(group.prompt.messages),
        "response": sample.response,
    }


def _within(lines: Mapping[str, bytes], limit: float) -> set[str]:
    """The most groups that fit the limit, spread evenly over all; the smallest if none fits."""
    groups, size = sorted(lines), sum(map(len, lines.values()))
    count = len(groups) if size <= limit else math.floor(len(groups) * limit / size)
    for wanted in range(count, 0, -1):
        chosen = {groups[number * len(groups) // wanted] for number in range(wanted)}
        if sum(len(lines[group]) for group in chosen) <= limit:
            return chosen
    return {min(groups, key=lambda group: len(lines[group]))} if groups else set()


def read_samples(path: Path) -> list[Row]:
    """The rows of one file.

    Raises:
        SlimeError: a line is not a row of samples.
    """
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not (isinstance(row, dict) and {"prompt", "response", "reward"} <= row.keys()):
            raise SlimeError("this line is not a sample", where=f"{path}:{number}", todo="Repair or delete the line.")
        rows.append(row)
    return rows
