"""`samples/`: the model's responses, a JSON object a sample, a file a step and an evaluation. Of a big run a share is
kept, of each step and of the steps, up to `observe.samples_mb` in all."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from slime import files
from slime.as_json import to_json
from slime.events import Evaluation, Event, Events, SampleRows, Samples
from slime.types import Group, Sample, TrackedRun
from slime_observers.samples.rows import EVALUATION, STEP, Row

MB = 10**6
NUM_FILES = 100
"""Files of the largest size that fit `observe.samples_mb`."""
MAX_FILES = 2000
"""However small they are: a live page lists all of them."""
ROW_CHARACTERS = 200
"""Least characters of a line beside its texts."""
_NAME = re.compile(rf"({STEP}|{EVALUATION})-(\d+)\.jsonl")
KEPT = "kept"
"""The filter's decision in a row; of a dropped group the reason."""
TABLES = {STEP: "rollout/samples", EVALUATION: "eval/samples"}
"""Names for trackers."""


def of_run(run: TrackedRun, events: Events) -> SampleLog:
    """The samples of any session, as far as `observe.samples_mb` wants them."""
    return SampleLog(run.folder / "samples", run.config.get("observe", {}).get("samples_mb", 0.0), events.publish)


class SampleLog:
    """Writes the samples of one run, as a subscriber of its events.

    Whole groups of a step are kept, spread evenly over it, up to a hundredth of the limit. Once all files pass the
    limit, or are more than `MAX_FILES`, some are removed, of steps or of evaluations, whichever take more, so that the
    others are spread over the run. The first and the newest always stay.

    Args:
        folder: `<run>/samples`, which may hold those of the run that this one continues.
        limit_mb: megabytes (10^6 bytes) of all files; 0 writes none.
        publish: told of the rows that are kept.
    """

    def __init__(self, folder: Path, limit_mb: float, publish: Callable[[Event], None] = lambda event: None) -> None:
        self._folder, self._limit, self._publish = folder, limit_mb * MB, publish
        self._sizes: dict[str, dict[int, int]] = {STEP: {}, EVALUATION: {}}
        for path in folder.glob("*.jsonl"):
            if named := _NAME.fullmatch(path.name):
                self._sizes[named[1]][int(named[2])] = path.stat().st_size

    def __call__(self, event: Event) -> None:
        """Write `step-<step>.jsonl` or `eval-<step>.jsonl`, in place of one that an abandoned step has left; raises
        SlimeError where the disk is full."""
        match event:
            case Samples():
                decisions = {group.id: KEPT if decision.keep else decision.reason for group, decision in event.judged}
                self._write(STEP, event.step, [group for group, _ in event.judged], decisions)
            case Evaluation():
                self._write(EVALUATION, event.step, event.groups, {})

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
        self._publish(SampleRows({TABLES[kind]: [row for row, _ in kept]}))

    def _path(self, kind: str, step: int) -> Path:
        return self._folder / f"{kind}-{step:06d}.jsonl"

    def _make_room(self) -> None:
        while (many := sum(map(len, self._sizes.values())) > MAX_FILES) or self._num_bytes() > self._limit:
            kinds = [kind for kind, sizes in self._sizes.items() if len(sizes) > 2]
            if not kinds:
                return
            kind = max(kinds, key=lambda each: len(self._sizes[each]) if many else sum(self._sizes[each].values()))
            steps = sorted(self._sizes[kind])
            gone = min(range(1, len(steps) - 1), key=lambda each: steps[each + 1] - steps[each - 1])
            self._path(kind, steps[gone]).unlink(missing_ok=True)
            del self._sizes[kind][steps[gone]]

    def _num_bytes(self) -> int:
        return sum(sum(sizes.values()) for sizes in self._sizes.values())


def _written(group: Group, decision: str | None, limit: float) -> list[tuple[Row, bytes]]:
    """Rows with their lines: as many samples as fit, but at least one."""
    written: list[tuple[Row, bytes]] = []
    room = limit
    for sample in group.samples:
        row = _row(group, sample, decision)
        line = to_json(row).encode() + b"\n"
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
