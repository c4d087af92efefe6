"""The reward `reasoning-gym`: a generator's own verdict on an answer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from slime.thinking import said
from slime.types import Sample, Verdict
from slime_agents.gym.options import ReasoningGymOptions


class ReasoningGymReward:
    """Judges rows that `reasoning-gym://` made, by the columns `generator` and `metadata`."""

    def __init__(self, options: ReasoningGymOptions) -> None:
        self._tag = options.tag

    def score(self, sample: Sample) -> Verdict:
        row = sample.prompt.metadata
        if not isinstance(row.get("generator"), str) or not isinstance(row.get("metadata"), Mapping):
            return Verdict.error("the row is not one of reasoning-gym's: it has no generator and metadata")
        answer = self._answer(said(sample))
        if answer is None:
            return Verdict.of(0.0)
        entry = {"answer": sample.prompt.label, "metadata": row["metadata"]}
        return Verdict.of(float(_judge(row["generator"]).score_answer(answer, entry)))

    def _answer(self, response: str) -> str | None:
        if self._tag is None:
            return response.strip()
        _, opened, rest = response.rpartition(f"<{self._tag}>")
        answer, closed, _ = rest.partition(f"</{self._tag}>")
        return answer.strip() if opened and closed else None


@cache
def _judge(generator: str) -> Any:
    from slime_agents.gym.generate import dataset

    return dataset(generator, {})
