"""Filter `function`: a function that says whether a group is trained on, or a class with `decide`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from slime.by_path.called import Form, Own, PathOptions
from slime.contracts import SampleFilter
from slime.functions.theirs import Args, SampleView
from slime.types import Decision, Group


@dataclass
class FilterOptions(PathOptions):
    form: ClassVar[Form] = Form(("group", "samples", "rewards", "args"), ("group",), ("decide",))


def own_filter(**options: Any) -> SampleFilter:
    own = Own(FilterOptions(**options), "filter.path")
    made: SampleFilter = own.made or FunctionFilter(own)
    return made


class FunctionFilter:
    """The function is asked of groups with at least two values, or with the one value of their one sample, and gets the
    samples that have one."""

    def __init__(self, own: Own) -> None:
        self._own, self._name = own, own.path.rpartition(":")[2]

    def decide(self, group: Group) -> Decision:
        if len(group.rewards) < min(2, len(group.samples)):
            return Decision(keep=False, reason="too_few_values")
        samples = [sample for sample in group.samples if sample.reward is not None]
        shown: list[Any] = [SampleView(sample) for sample in samples] if "args" in self._own.takes else samples
        answer = self._own.call(
            {"group": group, "samples": shown, "rewards": group.rewards, "args": Args(self._own.arguments)}
        )
        return answer if isinstance(answer, Decision) else self._decision(answer)

    def _decision(self, answer: Any) -> Decision:
        """Of true or false, of NumPy and torch too, or of an object with `keep` and perhaps a `reason`."""
        keep = getattr(answer, "keep", answer)
        is_array = str(getattr(keep, "dtype", "")).endswith("bool") and not getattr(keep, "shape", ())
        if not isinstance(keep, bool) and not is_array:
            raise self._own.returned(answer, "true or false, or a Decision")
        if keep:
            return Decision(keep=True)
        reason = getattr(answer, "reason", None) or f"not_{self._name}"
        return Decision(keep=False, reason=re.sub(r"[^a-z0-9_]+", "_", str(reason).lower()))
