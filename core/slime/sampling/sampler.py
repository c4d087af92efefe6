"""The sampler: what every attempt goes through, in training and in evaluation alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime.config.schema import DataConfig, EvalConfig, RewardConfig, RolloutConfig, SamplingConfig
from slime.contracts import Program, Responder
from slime.conversation import Chat
from slime.data.tokenize import Tokenizer
from slime.engine_client.engine_set import EngineSet
from slime.models.traits import Recording
from slime.sampling.attempts import Attempts
from slime.sampling.generate import Gate, Generator
from slime.sampling.pipeline import FailureBudget, Pipeline, Scorer
from slime.types import Prompt, Sample, Task, Verdict


@dataclass(frozen=True)
class Sampler:
    """Makes and judges attempts. `slime.sampling.loop.Rollout` and `slime.sampling.evaluate` are its clients. Belongs
    to one event loop, as the engines' clients do.

    Attributes:
        cfg: how many requests at once, and how long an engine may be silent.
        engines: where requests go; they may come and go.
        scorer: judges those attempts that the program does not judge.
        chat: turns conversations into tokens; None: no program has any.
        gate: in front of the engines, where their weights change while requests are inside.
        recordings: what engines note of the tokens that are trained on.
        vocab_size: of the model; None: it is not known.
    """

    cfg: RolloutConfig
    reward: RewardConfig
    seed: int
    engines: EngineSet
    tokenizer: Tokenizer
    program: Program
    scorer: Scorer
    chat: Chat | None = None
    gate: Gate | None = None
    recordings: Sequence[Recording] = ()
    vocab_size: int | None = None

    def begin(
        self, sampling: SamplingConfig, version: int, num_expected: int, *, is_evaluation: bool = False
    ) -> Pipeline:
        """A pipeline for groups that are sampled by the same weights, which every engine holds; `num_expected` samples
        are going to be scored at least."""
        recordings = () if is_evaluation else self.recordings
        generator = Generator(self.engines, sampling, self.tokenizer, self.gate, recordings, self.vocab_size)
        max_requests = self.cfg.max_requests_per_engine * self.engines.num_generating
        attempts = Attempts(
            self.program,
            generator,
            self.seed,
            version,
            is_evaluation=is_evaluation,
            max_requests=max_requests,
            chat=self.chat,
            timeout_s=self.cfg.program.timeout_s,
        )
        failures = FailureBudget(self.reward, num_expected)
        return Pipeline(attempts, self.engines, self.scorer, failures, max_requests, self.cfg.request_timeout_s)


@dataclass(frozen=True)
class ProgramBySet:
    """Makes each attempt by its prompt set's `own` program (by `Prompt.set`), or by the `usual` one."""

    usual: Program
    own: Mapping[str, Program]

    async def run(self, task: Task, model: Responder) -> Verdict | None:
        return await self.own.get(task.prompt.set, self.usual).run(task, model)


@dataclass(frozen=True)
class ScorerBySet:
    """Judges each sample by its prompt set's `own` reward (by `Prompt.set`), or by the `usual` one."""

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
    return {of: (name, getattr(own, f"{kind}_options")) for of, own in named.items() if (name := getattr(own, kind))}
