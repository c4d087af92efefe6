"""Programs and rewards of prompt sets that have their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime.config.schema import DataConfig, EvalConfig
from slime.contracts import Program, Responder
from slime.sampling.pipeline import Scorer
from slime.types import Prompt, Sample, Task, Verdict


@dataclass(frozen=True)
class ProgramBySet:
    """Makes each attempt by the program of its prompt's set.

    Attributes:
        usual: of the sets that have none of their own.
        own: by `Prompt.set`.
    """

    usual: Program
    own: Mapping[str, Program]

    async def run(self, task: Task, model: Responder) -> Verdict | None:
        return await self.own.get(task.prompt.set, self.usual).run(task, model)


@dataclass(frozen=True)
class ScorerBySet:
    """Judges each sample by the reward of its prompt's set; attributes as of `ProgramBySet`."""

    usual: Scorer
    own: Mapping[str, Scorer]

    async def score(self, sample: Sample) -> Verdict:
        return await self._of(sample.prompt).score(sample)

    def judges_groups(self, prompt: Prompt) -> bool:
        return self._of(prompt).judges_groups(prompt)

    async def score_group(self, samples: Sequence[Sample]) -> list[Verdict]:
        return await self._of(samples[0].prompt).score_group(samples)

    def _of(self, prompt: Prompt) -> Scorer:
        return self.own.get(prompt.set, self.usual)


def own_of_sets(kind: str, data: DataConfig, evaluation: EvalConfig) -> dict[str, tuple[str, dict[str, Any]]]:
    """By `Prompt.set`, name and options of each set that has a `kind` of its own: `reward` or `program`."""
    named = {**data.sets, **{f"eval/{name}": own for name, own in evaluation.sets.items()}}
    return {
        name: (getattr(own, kind), getattr(own, f"{kind}_options")) for name, own in named.items() if getattr(own, kind)
    }
