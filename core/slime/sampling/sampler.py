"""The sampler: what every attempt goes through, in training and in evaluation alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slime.config.schema import RewardConfig, RolloutConfig, SamplingConfig
from slime.contracts import Program
from slime.conversation import Chat
from slime.data.tokenize import Tokenizer
from slime.engine_client.engine_set import EngineSet
from slime.models.traits import Recording
from slime.sampling.attempts import Attempts
from slime.sampling.generate import Gate, Generator
from slime.sampling.pipeline import FailureBudget, Pipeline, Scorer


@dataclass(frozen=True)
class Sampler:
    """Makes and judges attempts. `slime.sampling.loop.Rollout` and `slime.sampling.evaluate` are its clients. Belongs
    to one event loop, as the engines' clients do.

    Attributes:
        cfg: how many requests at once, and how long an engine may be silent.
        reward: name and `max_failed_share` of the reward.
        seed: of the run.
        engines: where requests go; they may come and go.
        tokenizer: turns responses into text.
        program: makes the attempts.
        scorer: judges those that the program does not judge.
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
        """A pipeline for groups that are sampled by the same weights.

        Args:
            sampling: distribution and response limit.
            version: the weight version that every engine holds.
            num_expected: samples that are going to be scored at least.
            is_evaluation: whether the prompts are held-out ones.
        """
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
