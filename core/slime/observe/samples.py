"""`samples/`: what the model answered, a JSON object a sample, a file a step and an evaluation.

A big run keeps a share of its samples: whole groups, spread evenly over those of the step, up to `observe.samples_mb`.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slime import files
from slime.contracts import SampleRow, SampleTables
from slime.errors import SlimeError
from slime.types import Decision, Group, Sample

MB = 10**6
KEPT = "kept"
"""What the filter said, in a row; of a dropped group it is the reason."""

COLUMNS = (
    *("prompt", "sample", "reward", "verdict", "reason", "parts", "filter", "finish", "num_tokens", "weight_versions"),
    *("label", "messages", "response"),
)
"""Of a row, as far as it has them."""

ROLLOUT, EVAL = "rollout/samples", "eval/samples"
"""What trackers know them by."""

Row = dict[str, Any]
Cell = str | float | None

log = logging.getLogger(__name__)


class SampleLog:
    """Writes the samples of one run.

    Args:
        folder: `<run>/samples`.
        limit_mb: megabytes (10^6 bytes) a file at most; 0 writes none.
    """

    def __init__(self, folder: Path, limit_mb: float) -> None:
        self._folder, self._limit = folder, limit_mb * MB
        self._newest: dict[str, list[Row]] = {}

    def step(self, step: int, judged: Sequence[tuple[Group, Decision]]) -> None:
        """Write `step-<step>.jsonl`, in place of the one that an abandoned step may have left.

        Raises:
            SlimeError: the disk is full.
        """
        decisions = {group.id: KEPT if decision.keep else decision.reason for group, decision in judged}
        self._write(ROLLOUT, f"step-{step:06d}.jsonl", [group for group, _ in judged], decisions)

    def evaluation(self, step: int, groups: Sequence[Group]) -> None:
        """Write `eval-<step>.jsonl`, alike.

        Raises:
            SlimeError: the disk is full.
        """
        self._write(EVAL, f"eval-{step:06d}.jsonl", groups, {})

    def newest(self) -> SampleTables:
        """What was written since this was called last."""
        newest, self._newest = self._newest, {}
        return newest

    def _write(self, kind: str, name: str, groups: Sequence[Group], decisions: Mapping[str, str]) -> None:
        if not self._limit:
            return
        rows = {group.id: [_row(group, each, decisions.get(group.id)) for each in group.samples] for group in groups}
        lines = {group: b"".join(map(_line, samples)) for group, samples in rows.items()}
        kept = sorted(_within(lines, self._limit))
        with files.disk_errors(self._folder):
            files.write_atomic(self._folder / name, b"".join(lines[group] for group in kept))
        self._newest[kind] = [row for group in kept for row in rows[group]]


def _line(row: Row) -> bytes:
    return json.dumps(row, default=str).encode() + b"\n"


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


def best_and_worst(rows: Iterable[SampleRow], num_prompts: int) -> list[list[SampleRow]]:
    """Of the prompts whose rewards differ most the best and the worst response; where there is but one, that.

    Args:
        num_prompts: at most.
    """
    groups: dict[str, list[SampleRow]] = {}
    for row in rows:
        groups.setdefault(row["prompt"], []).append(row)
    chosen = sorted(groups.values(), key=_spread, reverse=True)[:num_prompts]
    ranked = [sorted(group, key=lambda row: (row["reward"] is None, -(row["reward"] or 0.0))) for group in chosen]
    return [group[:1] + group[1:][-1:] for group in ranked]


def _spread(group: Sequence[SampleRow]) -> float:
    rewards = [row["reward"] for row in group if row["reward"] is not None]
    return max(rewards) - min(rewards) if rewards else -1.0


def said_of(row: SampleRow) -> str:
    """`reward 1.000, 37 tokens, completed, weights 3`, and the parts of the reward or why there is none."""
    reward = row["reward"]
    parts = [
        f"{row.get('verdict', 'not scored')}: {row.get('reason', '')}" if reward is None else f"reward {reward:.3f}"
    ]
    parts += [f"{name} {value:.3f}" for name, value in row.get("parts", {}).items()]
    versions = dict.fromkeys(str(version) for version, _ in row["weight_versions"])
    return ", ".join([*parts, f"{row['num_tokens']} tokens", row["finish"], f"weights {' '.join(versions)}"])


def table(rows: Iterable[SampleRow]) -> list[list[Cell]]:
    """A line a sample, of `COLUMNS`: numbers, text, and JSON of what is neither."""
    return [[_cell(name, row.get(name)) for name in COLUMNS] for row in rows]


def _cell(name: str, value: Any) -> Cell:
    if isinstance(value, str) or value is None:
        return value
    if name in ("sample", "reward", "num_tokens"):
        return float(value) if name == "reward" else int(value)
    return json.dumps(value, ensure_ascii=False, default=str)
