"""Groups that wait between steps: unfinished ones to be continued, finished ones that came too late for their step."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any

from slime.segments import Rows, Segment, WeightSpan
from slime.types import Decision, Group, Prompt, Sample, Status, Verdict, VerdictKind


class FifoBuffer:
    """First in, first out. A response goes on where it stopped, however old its first tokens are: what of it is too
    old to be trained on is decided when it is trained on (`rollout.max_weight_lag`).

    Args:
        max_groups: groups held at most, a further one is dropped with the reason `full`; None means no limit.
    """

    def __init__(self, max_groups: int | None = None) -> None:
        self._max_groups = max_groups
        self._groups: deque[Group] = deque()

    def put(self, group: Group, version: int) -> Decision:
        """Store `group`, or refuse it because the buffer is full."""
        if self._max_groups is not None and len(self._groups) >= self._max_groups:
            return Decision(keep=False, reason="full")
        self._groups.append(group)
        return Decision(keep=True)

    def take(self, count: int, version: int) -> list[Group]:
        """The `count` longest-stored groups."""
        return [self._groups.popleft() for _ in range(min(count, len(self._groups)))]

    def __len__(self) -> int:
        return len(self._groups)

    def state_dict(self) -> dict[str, Any]:
        """Every group as plain dicts, lists and numbers."""
        return {"groups": [state_of(group) for group in self._groups]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold exactly the groups of `state`."""
        self._groups = deque(group_of(values) for values in state["groups"])


def state_of(group: Group) -> dict[str, Any]:
    """A group as plain values, for `BufferPolicy.state_dict`. It shares nothing that changes with the group."""
    # The prompt once, and lists copied as wholes: `asdict` would take a second for each 100,000 tokens.
    return {"prompt": dataclasses.asdict(group.prompt), "samples": [_state_of_sample(each) for each in group.samples]}


def _state_of_sample(sample: Sample) -> dict[str, Any]:
    values = {name: copy.copy(value) for name, value in vars(sample).items() if name != "prompt"}
    return values | {
        "segments": [_state_of_segment(segment) for segment in sample.segments],
        "verdict": sample.verdict and dataclasses.asdict(sample.verdict),
        "metadata": copy.deepcopy(sample.metadata),
        "turns": copy.deepcopy(sample.turns),
    }


def _state_of_segment(segment: Segment) -> dict[str, Any]:
    values = {name: copy.copy(value) for name, value in vars(segment).items()}
    recorded = {name: vars(rows) for name, rows in segment.recorded.items()}
    return values | {"spans": [dataclasses.asdict(span) for span in segment.spans], "recorded": recorded}


def group_of(values: Mapping[str, Any]) -> Group:
    """The group that `state_of` was given."""
    prompt = _prompt(values["prompt"])
    return Group(prompt, [_sample(prompt, sample) for sample in values["samples"]])


def _prompt(values: Mapping[str, Any]) -> Prompt:
    return Prompt(**{**values, "messages": tuple(values["messages"]), "tokens": tuple(values["tokens"])})


def _sample(prompt: Prompt, values: Mapping[str, Any]) -> Sample:
    own = {
        "prompt": prompt,
        "segments": [_segment(segment) for segment in values["segments"]],
        "status": Status(values["status"]),
        "verdict": _verdict(values["verdict"]),
    }
    return Sample(**{**values, **own})


def _segment(values: Mapping[str, Any]) -> Segment:
    spans = [WeightSpan(**span) for span in values["spans"]]
    # Checkpoints of earlier versions have no records.
    recorded = {name: Rows(**rows) for name, rows in values.get("recorded", {}).items()}
    return Segment(**{**values, "context": tuple(values["context"]), "spans": spans, "recorded": recorded})


def _verdict(values: Mapping[str, Any] | None) -> Verdict | None:
    return None if values is None else Verdict(**{**values, "kind": VerdictKind(values["kind"])})
