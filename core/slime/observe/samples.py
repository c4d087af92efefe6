"""`samples/`: what the model answered, a JSON object a sample, a file a step and an evaluation.

A big run keeps a share of them, up to `observe.samples_mb` in all: of a step, and of its steps.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slime import files
from slime.contracts import SampleRow, SampleTables
from slime.errors import SlimeError
from slime.events import Evaluation, Event, Samples
from slime.types import Group, Sample

MB = 10**6
NUM_FILES = 100
"""Of the largest that a file may be, which `observe.samples_mb` has room for."""
ROW_CHARACTERS = 200
"""Of a line at least, beside its texts."""
STEP, EVALUATION = "step", "eval"
_NAME = re.compile(rf"({STEP}|{EVALUATION})-(\d+)\.jsonl")
KEPT = "kept"
"""What the filter said, in a row; of a dropped group it is the reason."""

COLUMNS = (
    *("prompt", "sample", "reward", "verdict", "reason", "parts", "filter", "finish", "num_tokens", "weight_versions"),
    *("label", "messages", "response"),
)
"""Of a row, as far as it has them."""

ROLLOUT, EVAL = "rollout/samples", "eval/samples"
"""What trackers know them by."""
TABLES = {STEP: ROLLOUT, EVALUATION: EVAL}

Row = dict[str, Any]
Cell = str | float | None

log = logging.getLogger(__name__)


class SampleLog:
    """Writes the samples of one run, as a subscriber of its events.

    Of a step, whole groups are kept, spread evenly over it, up to a hundredth of the limit. Once all files pass the
    limit, some are removed, of steps or of evaluations, whichever take more; those that stay are spread over the run.
    The first and the newest always stay.

    Args:
        folder: `<run>/samples`, which may hold those of the run that this one continues.
        limit_mb: megabytes (10^6 bytes) of all files; 0 writes none.
    """

    def __init__(self, folder: Path, limit_mb: float) -> None:
        self._folder, self._limit = folder, limit_mb * MB
        self._newest: dict[str, list[Row]] = {}
        self._sizes: dict[str, dict[int, int]] = {STEP: {}, EVALUATION: {}}
        for path in folder.glob("*.jsonl"):
            if named := _NAME.fullmatch(path.name):
                self._sizes[named[1]][int(named[2])] = path.stat().st_size

    def __call__(self, event: Event) -> None:
        """Write `step-<step>.jsonl` or `eval-<step>.jsonl`, in place of the one that an abandoned step may have left.

        Raises:
            SlimeError: the disk is full.
        """
        match event:
            case Samples():
                decisions = {group.id: KEPT if decision.keep else decision.reason for group, decision in event.judged}
                self._write(STEP, event.step, [group for group, _ in event.judged], decisions)
            case Evaluation():
                self._write(EVALUATION, event.step, event.groups, {})

    def newest(self) -> SampleTables:
        """What was written since this was called last."""
        newest, self._newest = self._newest, {}
        return newest

    def _write(self, kind: str, step: int, groups: Sequence[Group], decisions: Mapping[str, str]) -> None:
        if not self._limit:
            return
        most = self._limit / NUM_FILES
        # A character takes a byte at least, so of a step of gigabytes little more is encoded than is kept.
        begun = _within({group.id: _num_characters(group) for group in groups}, most)
        written = {group.id: _written(group, decisions.get(group.id), most) for group in groups if group.id in begun}
        sizes = {group.id: _size(written[group.id], len(group.samples)) for group in groups if group.id in begun}
        kept = [line for group in sorted(_within(sizes, most)) for line in written[group]]
        with files.disk_errors(self._folder):
            files.write_atomic(self._path(kind, step), b"".join(line for _, line in kept))
            self._sizes[kind][step] = sum(len(line) for _, line in kept)
            self._make_room()
        self._newest[TABLES[kind]] = [row for row, _ in kept]

    def _path(self, kind: str, step: int) -> Path:
        return self._folder / f"{kind}-{step:06d}.jsonl"

    def _make_room(self) -> None:
        while sum(sum(sizes.values()) for sizes in self._sizes.values()) > self._limit:
            kinds = [kind for kind, sizes in self._sizes.items() if len(sizes) > 2]
            if not kinds:
                return
            kind = max(kinds, key=lambda each: sum(self._sizes[each].values()))
            steps = sorted(self._sizes[kind])
            gone = min(range(1, len(steps) - 1), key=lambda each: steps[each + 1] - steps[each - 1])
            self._path(kind, steps[gone]).unlink(missing_ok=True)
            del self._sizes[kind][steps[gone]]


def _written(group: Group, decision: str | None, limit: float) -> list[tuple[Row, bytes]]:
    """Rows with their lines: as many samples as fit, but at least one."""
    written: list[tuple[Row, bytes]] = []
    room = limit
    for sample in group.samples:
        row = _row(group, sample, decision)
        line = json.dumps(row, default=str).encode() + b"\n"
        room -= len(line)
        if written and room < 0:
            break
        written.append((row, line))
    return written


def _num_characters(group: Group) -> int:
    asked = sum(len(message["content"]) for message in group.prompt.messages)
    said = sum(len(turn["content"]) for sample in group.samples for turn in sample.turns)
    return said + sum(ROW_CHARACTERS + asked + len(sample.response) for sample in group.samples)


def _size(written: Sequence[tuple[Row, bytes]], num_samples: int) -> float:
    """Bytes of a whole group; one of which not all samples fit is larger than any."""
    return sum(len(line) for _, line in written) if len(written) == num_samples else math.inf


def _row(group: Group, sample: Sample, decision: str | None) -> Row:
    verdict = sample.verdict
    judged: Row = {"reward": None}
    if verdict is not None:
        judged = {"reward": verdict.value, "verdict": verdict.kind, "reason": verdict.reason, "parts": verdict.parts}
    return {
        "prompt": group.id,
        "sample": sample.index,
        **judged,
        **({"shaping": sample.shaping} if sample.shaping else {}),
        **({} if decision is None else {"filter": decision}),
        "finish": sample.status,
        "num_tokens": sample.num_sampled,
        "weight_versions": [[span.version, span.num_tokens] for span in sample.spans],
        "label": group.prompt.label,
        "messages": list(group.prompt.messages),
        "response": sample.response,
        **({"turns": sample.turns} if sample.turns else {}),
        **({"notes": sample.metadata} if sample.metadata else {}),
    }


def _within(sizes: Mapping[str, float], limit: float) -> set[str]:
    """The most groups that fit the limit, spread evenly over all; the smallest if none fits."""
    groups, wanted = sorted(sizes), len(sizes)
    while wanted:
        chosen = {groups[number * len(groups) // wanted] for number in range(wanted)}
        if (size := sum(sizes[group] for group in chosen)) <= limit:
            return chosen
        wanted = min(wanted - 1, math.floor(wanted * limit / size))
    return {min(groups, key=lambda group: sizes[group])} if groups else set()


def read_samples(path: Path) -> list[Row]:
    """The rows of one file.

    Raises:
        SlimeError: a line is not a row of samples.
    """
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
    """Whether a row has what is read of it below."""
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
    """Of the prompts whose rewards differ most the best and the worst response; where there is but one, that. Among
    prompts that differ as much, those with the lowest reward come first.

    Args:
        num_prompts: at most.
    """
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
    parts = [
        f"{row.get('verdict', 'not scored')}: {row.get('reason', '')}" if reward is None else f"reward {reward:.3f}"
    ]
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
