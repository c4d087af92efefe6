"""Rows of `samples/`, read: checked, chosen among, and in words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from slime.contracts import SampleRow
from slime.errors import SlimeError

STEP, EVALUATION = "step", "eval"
"""Beginnings of the names of files."""
COLUMNS = (
    *("prompt", "sample", "reward", "verdict", "reason", "parts", "filter", "finish", "num_tokens", "weight_versions"),
    *("label", "messages", "response"),
)
"""Columns of a table of rows; a row may lack some."""

Row = dict[str, Any]
Cell = str | float | None


def read_samples(path: Path) -> list[Row]:
    """The rows of one file; raises SlimeError where a line is not a row of samples."""
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not _is_sample(row):
            raise SlimeError("this line is not a sample", where=f"{path}:{number}", todo="Repair or delete the line.")
        rows.append(row)
    return rows


def _is_sample(row: Any) -> bool:
    """True if a row has what is read of it below."""
    if not isinstance(row, dict) or "reward" not in row:
        return False
    texts = [row.get(name) for name in ("prompt", "response", "finish")]
    parts, messages, versions = (row.get(name) for name in ("parts", "messages", "weight_versions"))
    return (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(value, int | float) for value in (row.get("num_tokens"), row.get("reward") or 0.0))
        and isinstance(messages, list)
        and all(isinstance(message, dict) and {"role", "content"} <= message.keys() for message in messages)
        and isinstance(versions, list)
        and all(isinstance(span, list) and len(span) == 2 for span in versions)
        and (parts is None or isinstance(parts, dict))
        and all(isinstance(value, int | float) for value in (parts or {}).values())
    )


def best_and_worst(rows: Iterable[SampleRow], num_prompts: int) -> list[list[SampleRow]]:
    """The best and the worst response, or the only one, to each of the `num_prompts` prompts whose rewards differ most;
    among prompts that differ as much, those with the lowest reward come first."""
    groups: dict[str, list[SampleRow]] = {}
    for row in rows:
        groups.setdefault(row["prompt"], []).append(row)
    chosen = sorted(groups.values(), key=_order)[:num_prompts]
    ranked = [sorted(group, key=lambda row: (row["reward"] is None, -(row["reward"] or 0.0))) for group in chosen]
    return [group[:1] + group[1:][-1:] for group in ranked]


def _order(group: Sequence[SampleRow]) -> tuple[float, float]:
    rewards = [row["reward"] for row in group if row["reward"] is not None]
    return (min(rewards) - max(rewards), min(rewards)) if rewards else (1.0, 0.0)


def said_of(row: SampleRow) -> str:
    """`reward 1.000, 37 tokens, completed, weights 3`, and the parts of the reward or why there is none."""
    reward = row.get("reward")
    refused = f"{row.get('verdict', 'not scored')}: {row.get('reason', '')}"
    parts = [refused if reward is None else f"reward {reward:.3f}"]
    parts += [f"{name} {value:.3f}" for name, value in (row.get("parts") or {}).items()]
    versions = dict.fromkeys(str(version) for version, _ in row["weight_versions"])
    return ", ".join([*parts, f"{row['num_tokens']} tokens", row["finish"], f"weights {' '.join(versions)}"])


def spoken(row: SampleRow) -> str:
    """The response; of a conversation every turn behind the prompt."""
    turns = [f"{turn['role']}: {turn['content']}" for turn in row.get("turns", ())]
    return "\n".join(turns) or str(row["response"])


def table(rows: Iterable[SampleRow]) -> list[list[Cell]]:
    """A line a sample, of `COLUMNS`: numbers, text, and JSON of what is neither."""
    return [[_cell(name, row.get(name)) for name in COLUMNS] for row in rows]


def _cell(name: str, value: Any) -> Cell:
    if isinstance(value, str) or value is None:
        return value
    if name in ("sample", "reward", "num_tokens"):
        return float(value) if name == "reward" else int(value)
    return json.dumps(value, ensure_ascii=False, default=str)
